"""Sections of a spec: the bounds of each key, and the bytes that are stored of what was asked for.

Most sections are their owners' dataclasses, so a change of an owner is a change of what users may write and
of what is stored. The golden files hold both still.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import SpecError
from jobs.runs.tasks import described_run
from jobs.spec_schema.file import SpecFile
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.stored_spec import store_spec
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import expand, schedule
from jobs.sweeps.results import Results
from tests.conftest import Golden

SPECS = Path(__file__).parents[3] / "jobs" / "specs"
EVERY_SETTING = """
elastic: {wait_for_spare_s: 5, grow_after_s: 7}
optimizer: {lr: 1e-3, beta1: 0.8, beta2: 0.9, eps: 1e-7, weight_decay: 0, warmup_steps: 3, clip_norm: 2,
  schedule: cosine, min_lr_ratio: 0.1, decay_steps: 30}
checkpoint: {every_s: 30, retention: {last: 1, epochs: false, best: 2, metric: loss, mode: max, every_s: 60,
  every_steps: 100, every_epochs: 2}}
record: {flush_s: 2, tensorboard: false, wandb: {project: big-runs, entity: team},
  mlflow: {experiment: big-runs}}
recovery: {max_attempts: 4, losses: 1, hangs: 2, errors: 5, step_backs: 0, patience_s: 9, pause_s: 0,
  most_pause_s: 8, spares: devices}
alarms: {command: [notify, a b], timeout_s: 5, min_interval_s: 0, loss_spike: 3, throughput_drop: null,
  straggler: 1, stale_checkpoint: 2, utilization_pct: 50, slow_link: 0.5, data_wait: 0.1}
"""
SWEEP = """
name: trial
models: [llama-tiny]
optimizer: {schedule: linear, decay_steps: 30}
measure: {steps: 7, warmup: 2, sync: step, max_s: 9, cooldown_s: 1}
"""
SMALLEST: dict[type[SpecFile], str] = {
    RunSpec: "name: trial\nmodel: llama-tiny\nsteps: 40\n",
    SweepSpec: "name: trial\nmodels: [llama-tiny]\n",
}
# From below each bound to beyond it, and what is of another type.
TRIED = (
    "-1",
    "0",
    "0.5",
    "1",
    "1.5",
    "50",
    "51",
    "99",
    "100",
    ".nan",
    ".inf",
    "many",
    "''",
    "true",
    "null",
    "[]",
)
SECTIONS = ("elastic", "optimizer", "checkpoint", "record", "recovery", "alarms", "measure")


def test_what_is_stored_of_a_spec_stays_to_the_byte(tmp_path: Path, golden: Golden) -> None:
    runs = sorted(SPECS.glob("runs/*.yaml"))
    sweeps = sorted(SPECS.glob("sweeps/*.yaml"))
    every_run, every_sweep = tmp_path / "every-run.yaml", tmp_path / "every-sweep.yaml"
    every_run.write_text(SMALLEST[RunSpec] + EVERY_SETTING)
    every_sweep.write_text(SWEEP)
    texts = [f"{path.name}:\n{_stored_run(RunSpec.load(path))}\n" for path in [*runs, every_run]]
    texts += [f"{path.name}:\n{_stored_sweep(SweepSpec.load(path))}" for path in [*sweeps, every_sweep]]
    golden("stored_specs.txt", "".join(texts))


@pytest.mark.parametrize("kind", [RunSpec, SweepSpec], ids=lambda kind: kind.of.kind)
def test_each_key_of_a_section_refuses_what_is_out_of_its_bounds(
    kind: type[SpecFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(f"{kind.of.kind}.yaml")
    path.write_text(SMALLEST[kind])
    lines = [_refused(kind, path, key) for key in _keys(kind.load(path).model_dump(mode="json"))]
    golden(f"{kind.of.kind}_spec_bounds.txt", "".join(lines))


def _stored_run(spec: RunSpec) -> str:
    store = MemoryStore()
    store_spec(store, spec.name, described_run(spec, None))
    return store.get(f"runs/{spec.name}/spec.json").decode()


def _stored_sweep(spec: SweepSpec) -> str:
    """Its cells' names stand in it, which are digests of what they measure."""
    store = MemoryStore()
    cells = expand(spec, spec.group_names(["local"]))
    Results(store, spec.name).describe(spec, schedule(spec, cells))
    return store.get(f"sweeps/{spec.name}/sweep.json").decode()


def _keys(described: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in described.items():
        place = f"{above}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{place}.")
        elif place.partition(".")[0] in SECTIONS:
            yield place


def _refused(kind: type[SpecFile], path: Path, key: str) -> str:
    """The key, then each message with the values that get it."""
    values = defaultdict(list)
    for text in TRIED:
        try:
            kind.load(path, [f"{key}={text}"])
        except SpecError as error:
            values[str(error).partition("expected ")[2] or str(error)].append(text)
    told = "".join(f"  {message}: {', '.join(texts)}\n" for message, texts in values.items())
    return f"{key}\n{told}"
