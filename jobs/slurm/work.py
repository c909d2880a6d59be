"""Says what of a sweep's or a run's spec a job needs: its kind, its name, its store, its groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.yaml_file import MOST_BYTES, YamlError, read_named, read_yaml
from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.file import check_plain_name
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import AUTO, SweepSpec

Kind = Literal["sweep", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """``groups`` are those that the spec names, or none if it takes all. A sweep needs each of them, and a
    run one at a time. ``text`` is the whole file.
    """

    kind: Kind
    name: str
    store: str
    groups: tuple[str, ...]
    text: str


def read_work(path: Path, overrides: Sequence[str], run: str | None) -> Work:
    """Reads and checks the spec, with its overrides. Raises ``SpecError`` as ``sweep`` and ``train`` do."""
    if _is_sweep(path):
        sweep = SweepSpec.load(path, overrides)
        if run:
            raise SpecError([f"--run: {path} is a sweep's spec, and a sweep is known by its own name"])
        groups = () if AUTO in sweep.groups else sweep.groups
        return Work(kind="sweep", name=sweep.name, store=sweep.store, groups=groups, text=_text(path))
    spec = RunSpec.load(path, overrides)
    name = check_plain_name(run, "--run") if run else spec.name
    return Work(kind="train", name=name, store=spec.store, groups=spec.group, text=_text(path))


def _is_sweep(path: Path) -> bool:
    try:
        data: Any = read_yaml(path, "the YAML file of a sweep or a run")
    except YamlError as error:
        raise SpecError([str(error)]) from None
    return isinstance(data, dict) and SweepSpec.of.named in data and RunSpec.of.named not in data


def _text(path: Path) -> str:
    """As it was checked just now. Other line ends than Unix' make sbatch refuse a script."""
    text = read_named(path, MOST_BYTES).decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
