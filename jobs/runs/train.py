"""``longhaul train``: one long run, from its newest good generation to its end. Running it again resumes the
run.

Each attempt takes a lease of its own in the run's log, which fences every attempt before it.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from checkpointing.stores.contract import Store, StoreError, Unavailable
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, Inventory, WorkerGroup
from jobs.checkpoints.export import export_once
from jobs.commandline.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    complain,
)
from jobs.commandline.output import printable, say
from jobs.commandline.set_values import warn_of_secrets_in_job
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import Occupied, SpecError, nearest
from jobs.execution.outcomes import EXPECTED, Cancelled, Completed, GivenUp, Setback, Unmendable
from jobs.gauges.emitter import Emitter
from jobs.gauges.ray_gauges import RayGauges
from jobs.gauges.run_gauges import RunGauges
from jobs.launch.choose import choose_executor
from jobs.launch.torchrun import LauncherPlace
from jobs.run_progress.run_view import RunDisplay
from jobs.run_progress.status_file import StatusFile
from jobs.runs.attempts import Driver, work
from jobs.runs.data_check.find import Data, find_data, num_samples
from jobs.runs.data_check.masks import check_kernel
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.driver_process import EXIT_GIVEN_UP, EXIT_NO_CLUSTER, EXIT_OCCUPIED
from jobs.runs.dry_run.plan import as_data, plan_of
from jobs.runs.dry_run.text import plan_text
from jobs.runs.resume_checks import check_unchanged, model_of_last_start, samples_before, without_data
from jobs.runs.resume_command import note_stop, resume_command
from jobs.runs.status import status_of
from jobs.runs.stop_signals import StopSignals
from jobs.runs.tasks import Beginning, Tasks, absolute, beginning, described_run
from jobs.spec_schema.file import check_plain_name
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.models.weights import find_weights


class RunFailed(Exception):
    """A run ended that is neither done nor stopped; ``end`` says how."""

    def __init__(self, end: GivenUp | Setback) -> None:
        super().__init__(end.message)
        self.end = end


def train(args: argparse.Namespace) -> int:
    try:
        with StopSignals(is_end=True) as stop_signals:
            return _train(args, stop_signals)
    except (*EXPECTED, RunFailed) as error:
        code = exit_code(error, is_kept=args.kept)
        return complain("train", error, code) if LauncherPlace.of_this_process().rank == 0 else code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def exit_code(error: Exception, *, is_kept: bool) -> int:
    """The exit code for an error. A supervisor gets more kinds of them than a user does."""
    match error:
        case Occupied() if is_kept:
            return EXIT_OCCUPIED
        case RunFailed(end=GivenUp()) if is_kept:
            return EXIT_GIVEN_UP
        case ClusterError() if is_kept:
            return EXIT_NO_CLUSTER
        case RunFailed() | Fenced() | Unavailable():
            return EXIT_FAILED
        case _:
            return EXIT_USAGE


def _train(args: argparse.Namespace, stop_signals: StopSignals) -> int:
    if args.address:
        raise SpecError(["--address: only --keep submits jobs; give both, or set RAY_ADDRESS"])
    spec = RunSpec.load(args.spec, args.set)
    warn_of_secrets_in_job(args.set)
    run = check_plain_name(args.run, "--run") if args.run else spec.name
    store = open_store(args.store or spec.store, base=store_base()) if spec.is_kept else MemoryStore()
    is_folder_gone = spec.model.shape is None
    if is_folder_gone:
        spec = RunSpec.load(args.spec, [*args.set, model_of_last_start(spec.model, store, run)])
    if args.dry_run:
        return _show_plan(args, spec, store, run)
    with (
        DriverPresence(
            store, run, is_wanted=LauncherPlace.of_this_process().rank == 0 and not args.take_over
        ) as presence,
        choose_executor(
            args.executor,
            verbose=args.verbose,
            share_nodes=True,
            spread=spec.spread,
            excluded=args.exclude_node,
        ) as executor,
    ):
        # One rank of each machine: other machines never hear that rank 0 has ended. All would be a crowd.
        if executor.is_main_process or LauncherPlace.of_this_process().local_rank == 0:
            store.probe()
        repository = Repository(store, run)
        begins = beginning(args.resume, repository, spec, fresh=args.fresh)
        if not args.fresh and args.resume == "latest" and _is_finished(repository, spec):
            check_unchanged(repository, without_data(described_run(spec, None)))
            return _say_finished(args, spec, repository) if executor.is_main_process else EXIT_OK
        inventory = read_cluster(args.cluster) if args.cluster else executor.inventory()
        groups, tokens = _groups(spec, inventory), find_data(spec)
        for group in groups:
            check_kernel(spec, group, tokens)
        begins = _checked(spec, repository, begins, tokens)
        tasks = Tasks(spec, repository, begins, tokens, presence)
        display = RunDisplay(run, quiet=args.json, silent=not executor.is_main_process)
        status = StatusFile(store, run, presence.own, is_fresh=begins.fresh, may_speak=presence.may_speak)
        gauges = RunGauges(groups[0].device, time.monotonic())
        with status, display, Emitter(gauges, RayGauges(run).publish):
            display.on_progress(status.tell, gauges.tell)
            if is_folder_gone:
                display.note(f"{spec.model.path} is gone; the model is that of the run's last start")
            if missing := _missing(spec, inventory):
                display.note(f"{missing}; this driver goes on without")
            if executor.is_main_process:
                stop_signals.listen(store, run, display.note)
                if starts := executor.starts():
                    display.note(starts)
            driver = Driver(
                executor=executor,
                spec=spec,
                groups=groups,
                repository=repository,
                make_task=tasks.make,
                display=display,
                gauges=gauges,
                stop_signals=stop_signals,
                may_retry=spec.is_kept and not args.no_retry,
            )
            pointer = _carry_out(driver)
        if not executor.is_main_process:
            return EXIT_OK
        stop_signals.stop_listening()
        display.summarise(pointer, resume_command(args, repository, begins.term))
        _export(args, spec, repository)
        if args.json:
            # The run may have been stopped before its first attempt, and then the store knows no run.
            told = status_of(store, run) if repository.view.term else {"run": run}
            say(json.dumps({**told, **display.facts(), "ray_checkpoint": pointer}, indent=1), to=sys.stdout)
        return EXIT_OK if display.is_durable else EXIT_FAILED


def _show_plan(args: argparse.Namespace, spec: RunSpec, store: Store, run: str) -> int:
    """Checks all that a start checks, and prints what it would do. Nothing is started or written."""
    repository = Repository(store, run)
    begins = beginning(args.resume, repository, spec, fresh=args.fresh)
    with choose_executor(
        args.executor, verbose=args.verbose, share_nodes=True, spread=spec.spread, excluded=args.exclude_node
    ) as executor:
        inventory = read_cluster(args.cluster) if args.cluster else executor.inventory()
        is_main_process = executor.is_main_process
    groups, tokens = _groups(spec, inventory), find_data(spec)
    for group in groups:
        check_kernel(spec, group, tokens)
    begins = _checked(spec, repository, begins, tokens)
    plan = plan_of(spec, repository, begins, inventory, groups, tokens)
    if is_main_process:
        if missing := _missing(spec, inventory):
            say(f"{missing}; a start goes on without", to=sys.stderr)
        print(json.dumps(as_data(plan), indent=1) if args.json else printable(plan_text(plan)))
        sys.stdout.flush()
    if not plan.can_be_placed:
        return EXIT_FAILED
    return EXIT_UNDECIDED if plan.is_too_large else EXIT_OK


def _carry_out(driver: Driver) -> str | None:
    """Runs the attempts; returns the generation that Ray's own result points at. A run that failed is raised,
    so that the display sees it.
    """
    match work(driver):
        case Completed(pointer=pointer):
            return pointer
        case Cancelled(stop_request=stop_request):
            driver.display.hear(note_stop(driver.repository, driver.stop_signals.term, stop_request))
            return None
        case Unmendable(error=error):
            raise error
        case end:
            raise RunFailed(end)


def _checked(spec: RunSpec, repository: Repository, begins: Beginning, tokens: Data | None) -> Beginning:
    """Where to begin, after the spec and the weights were checked and before anything is started."""
    if not begins.fresh and not check_unchanged(repository, described_run(spec, tokens)):
        begins = replace(begins, fresh=True)
    is_first = begins.origin is None and (begins.fresh or not of_this_life(repository.view))
    if spec.weights and is_first:
        find_weights(absolute(spec.weights), spec.model.config)
    return begins


def _is_finished(repository: Repository, spec: RunSpec) -> bool:
    finished = repository.refresh().finished_step
    return finished is not None and finished >= (spec.steps or spec.num_steps(_num_samples(repository, spec)))


def _num_samples(repository: Repository, spec: RunSpec) -> int:
    """How many samples make an epoch. If the data is gone, as many as when the run was last started."""
    try:
        return num_samples(spec, find_data(spec))
    except (SpecError, StoreError):
        if (before := samples_before(repository)) is None:
            raise
        return before


def _say_finished(args: argparse.Namespace, spec: RunSpec, repository: Repository) -> int:
    _export(args, spec, repository)
    status = status_of(repository.store, repository.run)
    run, step, newest = repository.run, status["step"], status["newest_generation"]
    line = f"{run}: finished at step {step}, nothing to do ({newest})"
    say(json.dumps(status, indent=1) if args.json else line, to=sys.stdout)
    return EXIT_OK


def _export(args: argparse.Namespace, spec: RunSpec, repository: Repository) -> None:
    if spec.on_finish.export is None:
        return
    place = store_base() / Path(spec.on_finish.export).expanduser()
    if line := export_once(repository, place):
        say(f"{repository.run}: {line}", to=sys.stderr if args.json else sys.stdout)


def _groups(spec: RunSpec, inventory: Inventory) -> Sequence[WorkerGroup]:
    """Those of the spec's groups that are there, in its order."""
    groups = [group for name in spec.group if (group := inventory.group(name))]
    if not groups:
        raise ClusterError(_missing(spec, inventory))
    return groups


def _missing(spec: RunSpec, inventory: Inventory) -> str:
    """Which of the spec's groups are not there; empty if all are."""
    known = [group.name for group in inventory.groups]
    missing = [name for name in spec.group if name not in known]
    if not missing:
        return ""
    names = " and no group ".join(map(repr, missing))
    return f"group: {inventory.source} has no group {names} ({', '.join(known)}){nearest(missing[0], known)}"
