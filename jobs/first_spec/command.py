"""``longhaul init`` looks at what there is, and writes a spec that runs there and fits. It starts no Ray."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, Inventory, WorkerGroup, excluding
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, run_command
from jobs.commandline.output import printable
from jobs.commandline.usage_error import SpecError, nearest
from jobs.first_spec.choice import Chosen, Compared, NothingFits, choose_run, choose_sweep, largest
from jobs.first_spec.spec_text import name_of, run_text, sweep_text
from jobs.launch.choose import choose_executor
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.training.task.presets import PRESETS
from reporting.analysis.formatting import counted


class NoSpec(Exception):
    """Nothing fits, or the file can't be written."""


def init(args: argparse.Namespace) -> int:
    codes = {SpecError: EXIT_USAGE, ClusterError: EXIT_USAGE, NoSpec: EXIT_FAILED}
    return run_command("init", lambda: _init(args), codes)


def _init(args: argparse.Namespace) -> int:
    file: Path = args.file or Path(f"{args.kind}.yaml")
    _refuse_existing(file)
    if args.model is not None and args.model not in PRESETS:
        known = list(PRESETS)
        raise SpecError(
            [f"--model: {args.model!r} is not a preset ({', '.join(known)}){nearest(args.model, known)}"]
        )
    inventory = _inventory(args)
    chosen = _choose(args, inventory)
    if isinstance(chosen, NothingFits):
        raise NoSpec(chosen.reason)
    name = name_of(file, args.kind)
    text = run_text(chosen, name) if isinstance(chosen, Chosen) else sweep_text(chosen, name)
    _check(text, args.kind, file)
    _write(file, text)
    print(printable("\n".join([_said(file, chosen, inventory), "next:", *_next(args, file)])))
    return EXIT_OK


def _refuse_existing(file: Path) -> None:
    if file.is_symlink() or file.exists():
        raise SpecError([f"{file}: exists and is left as it is; give another name: longhaul init FILE"])


def _inventory(args: argparse.Namespace) -> Inventory:
    if args.cluster:
        return excluding(read_cluster(args.cluster), args.exclude_node)
    with choose_executor("ray", verbose=False, share_nodes=True, excluded=args.exclude_node) as executor:
        return executor.inventory()


def _choose(args: argparse.Namespace, inventory: Inventory) -> Chosen | Compared | NothingFits:
    group = _group(inventory, args.group)
    if args.kind == "run":
        return choose_run(inventory, group, args.model)
    usable = [one for one in inventory.groups if one.num_devices]
    return choose_sweep(inventory, [group] if args.group else usable, args.model)


def _group(inventory: Inventory, name: str | None) -> WorkerGroup:
    found = inventory.group(name) if name else largest(inventory)
    if found is not None and found.num_devices:
        return found
    known = [group.name for group in inventory.groups if group.num_devices]
    if name is None:
        raise ClusterError(f"{inventory.source} has no devices that may be used")
    raise ClusterError(
        f"--group: {inventory.source} has no group {name!r} with devices ({', '.join(known) or 'none'})"
        f"{nearest(name, known)}"
    )


def _check(text: str, kind: str, file: Path) -> None:
    """Reads the spec as the commands will, before its file is there."""
    with TemporaryDirectory(prefix="longhaul-") as folder:
        path = Path(folder) / f"{kind}.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            (RunSpec if kind == "run" else SweepSpec).load(path)
        except SpecError as error:
            raise SpecError([line.replace(str(path), str(file)) for line in error.problems]) from None


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        _refuse_existing(file)
    except OSError as error:
        raise NoSpec(f"{file}: can't be written ({error.strerror})") from None


def _said(file: Path, chosen: Chosen | Compared, inventory: Inventory) -> str:
    recipe, fit = chosen.recipe, chosen.fit
    need = f"{fit.predicted.total / 1e9:.2f} GB"
    if fit.limit_bytes is None:
        memory = f"needs about {need} per worker; how much is there is not known"
    else:
        memory = f"needs about {need} of the {fit.limit_bytes / 1e9:.2f} GB per worker"
    if isinstance(chosen, Chosen):
        what = (
            f"trains {recipe.model.name} with {recipe.strategy} on "
            f"{counted(recipe.world_size, _noun(chosen.group))} of {inventory.source}"
        )
    else:
        what = (
            f"compares {', '.join(chosen.strategies)} with {recipe.model.name} on up to "
            f"{counted(recipe.world_size, _noun(chosen.groups[0]))} of {inventory.source}"
        )
    return f"{file}: {what}; {memory}"


def _noun(group: WorkerGroup) -> str:
    if group.simulated:
        return "simulated device"
    return "core" if group.vendor == "cpu" else "device"


def _next(args: argparse.Namespace, file: Path) -> Sequence[str]:
    cluster = f" --cluster {shlex.quote(str(args.cluster))}" if args.cluster else ""
    command = "train" if args.kind == "run" else "sweep"
    line = f"  longhaul {command} {shlex.quote(str(file))}{cluster}"
    return [f"{line} --dry-run", line]
