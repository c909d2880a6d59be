"""The story of a long run: from its newest good generation until it is done. Running it again goes on.

Each start is one attempt with a lease of its own in the run's log, which fences every attempt before it.
"""

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from checkpointing.choice import find
from checkpointing.errors import Fenced, NothingToResume, Unfit
from checkpointing.history import View
from checkpointing.repository import Repository
from checkpointing.retention import of_this_life
from checkpointing.store import MemoryStore, Store, StoreError, Unavailable, open_store
from cluster.config import read_cluster
from cluster.environment import long_run_environment
from cluster.inventory import ClusterError, Inventory, WorkerGroup
from jobs.alarms import Alarms
from jobs.bell import Bell
from jobs.continuity import Rivals, check_unchanged, without_data
from jobs.errors import AttemptFailed, GivenUp, SpecError, StopWished, nearest
from jobs.executors import AttemptOrder, Executor, Place, choose_executor
from jobs.finishing import export_once
from jobs.places import store_base
from jobs.resizing import Resizing
from jobs.restarts import Restarts
from jobs.run_display import RunDisplay
from jobs.run_spec import RunSpec
from jobs.sessions import Beat
from jobs.spec_file import check_plain_name
from jobs.status import StatusFile, status_of
from jobs.stopping import note_stop, resume_command
from jobs.tokens import find_tokens, num_samples
from jobs.training.events import Told
from jobs.training.models.presets import preset
from jobs.training.models.weights import find_weights
from jobs.training.task import Origin, Task, Tokens
from jobs.training.wishes import Wish, stronger
from jobs.wishers import Wishers
from reporting.steady import steady

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
_COLLECTIVE_TIMEOUT_S = 1800.0
_USERS_TURN = (SpecError, ClusterError, NothingToResume, Unfit)


def train(args: argparse.Namespace) -> int:
    try:
        with Wishers() as wishers:
            return _train(args, wishers)
    except (*_USERS_TURN, StoreError, Fenced, AttemptFailed, GivenUp) as error:
        if Place.of_this_process().rank == 0:
            for line in str(error).splitlines():
                print(f"longhaul train: {line}", file=sys.stderr)
        is_users_turn = isinstance(error, (*_USERS_TURN, StoreError))
        return EXIT_USAGE if is_users_turn and not isinstance(error, Unavailable) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """What a user asked to begin with; later attempts go on from what the first ones of them left.

    ``term`` is that of this driver's first attempt.
    """

    origin: Origin | None
    what: str
    fresh: bool
    term: int

    def is_fresh(self, view: View) -> bool:
        return self.fresh and view.term < self.term

    def resume(self, view: View) -> str:
        has_saved = any(one.term >= self.term for one in view.generations)
        return "latest" if has_saved else self.what


def _train(args: argparse.Namespace, wishers: Wishers) -> int:
    spec = RunSpec.load(args.spec, args.set)
    run = check_plain_name(args.run, "--run") if args.run else spec.name
    store = open_store(args.store or spec.store, base=store_base()) if spec.is_kept else MemoryStore()
    with (
        Rivals(store, run, is_wanted=Place.of_this_process().rank == 0 and not args.take_over) as rivals,
        choose_executor(
            args.executor,
            verbose=args.verbose,
            share_nodes=True,
            spread=spec.spread,
            excluded=args.exclude_node,
        ) as executor,
    ):
        group = _group(spec, read_cluster(args.cluster) if args.cluster else executor.inventory())
        store.probe()
        repository = Repository(store, run)
        origin, what = _beginning(args.resume, repository, spec, fresh=args.fresh)
        if _is_finished(repository, spec) and not args.fresh and args.resume == "latest":
            check_unchanged(repository, without_data(_described(spec, None)))
            return _say_finished(args, spec, repository) if executor.speaks else EXIT_OK
        tokens = find_tokens(spec)
        if not args.fresh:
            check_unchanged(repository, _described(spec, tokens))
        if spec.weights and origin is None and (args.fresh or not of_this_life(repository.view)):
            find_weights(_absolute(spec.weights), preset(spec.model))
        beginning = _Beginning(origin=origin, what=what, fresh=args.fresh, term=repository.view.term + 1)
        display = RunDisplay(run, quiet=args.json, silent=not executor.speaks)
        with StatusFile(store, run, rivals.own) as status, display:
            display.on_progress(status.tell)
            if executor.speaks:
                wishers.listen(store, run, display.note)
            make = partial(_make_task, spec, store, repository, group, beginning, tokens, rivals)
            try:
                pointer = _attempts(args, executor, spec, group, repository, make, display, wishers)
            except StopWished as stop:
                pointer = None
                display.hear(note_stop(repository, wishers.term, stop.wish))
        if not executor.speaks:
            return EXIT_OK
        display.summarise(pointer, resume_command(args))
        _export(args, spec, repository)
        if args.json:
            # It may have been stopped before it was there.
            told = status_of(store, run) if repository.view.term else {"run": run}
            print(json.dumps({**told, **display.facts(), "ray_checkpoint": pointer}, indent=1))
        return EXIT_OK if display.is_durable else EXIT_FAILED


def _attempts(
    args: argparse.Namespace,
    executor: Executor,
    spec: RunSpec,
    group: WorkerGroup,
    repository: Repository,
    make_task: Callable[[int, float], Task],
    display: RunDisplay,
    wishers: Wishers,
) -> str | None:
    """One after another, until one ends well. Peers that share an attempt but don't speak don't judge it."""
    has_begun, is_one = repository.view.term > 0, args.no_retry or not spec.is_kept
    policy = replace(spec.recovery.policy(), max_attempts=1) if is_one else spec.recovery.policy()
    clock = steady()
    bell = Bell(Alarms(spec.alarms.bounds(), spec.wanted()), spec.alarms.ringing(), display.note)
    restarts = Restarts(
        repository, policy if executor.can_retry else None, display, pause=wishers.pause, clock=clock
    )
    resizing = Resizing(
        executor.sizes(spec.sizes, group),
        spec.elastic.patience(),
        partial(executor.room, group),
        display.note,
        pause=wishers.pause,
    )

    def wish() -> Wish | None:
        # What keeps nothing would begin again for each size.
        return stronger(wishers.wish(), resizing.wish() if spec.is_kept else None)

    def hear(told: Told | Beat) -> None:
        bell.hear(told)
        if not isinstance(told, Beat):
            resizing.hear(told)
            display.hear(told)

    def make(world_size: int) -> Task:
        task = restarts.begin(make_task(world_size, clock()))
        bell.begins(task)
        wishers.began(task.term)
        return task

    def attempt(without: tuple[str, ...]) -> str | None:
        size = resizing.next_size(without)
        order = replace(
            _order(spec, group, without, may_wait=has_begun or repository.view.term > 0),
            world_size=size,
            schedule_timeout_s=resizing.schedule_timeout_s(spec.limits.schedule_timeout_s),
            wish=wish,
        )
        try:
            return executor.attempt(order, partial(make, size), hear)
        except AttemptFailed as error:
            bell.failed(error.cause, error.reason)
            raise

    with bell:
        return restarts.work(attempt)


def _is_finished(repository: Repository, spec: RunSpec) -> bool:
    finished = repository.refresh().finished_step
    return finished is not None and finished >= _num_steps(spec)


def _num_steps(spec: RunSpec) -> int:
    """Looks at the data only where it must: a finished run says so without them."""
    return spec.steps or spec.num_steps(num_samples(spec, find_tokens(spec)))


def _say_finished(args: argparse.Namespace, spec: RunSpec, repository: Repository) -> int:
    _export(args, spec, repository)
    status = status_of(repository.store, repository.run)
    if args.json:
        print(json.dumps(status, indent=1))
    else:
        run = repository.run
        print(f"{run}: finished at step {status['step']}, nothing to do ({status['newest_generation']})")
    return EXIT_OK


def _export(args: argparse.Namespace, spec: RunSpec, repository: Repository) -> None:
    if spec.on_finish.export is None:
        return
    place = store_base() / Path(spec.on_finish.export).expanduser()
    if line := export_once(repository, place):
        print(f"{repository.run}: {line}", file=sys.stderr if args.json else sys.stdout)


def _group(spec: RunSpec, inventory: Inventory) -> WorkerGroup:
    group = inventory.group(spec.group)
    if group is None:
        known = [group.name for group in inventory.groups]
        raise ClusterError(
            f"group: {inventory.source} has no group {spec.group!r} ({', '.join(known)})"
            f"{nearest(spec.group, known)}"
        )
    return group


def _order(spec: RunSpec, group: WorkerGroup, without: tuple[str, ...], *, may_wait: bool) -> AttemptOrder:
    return AttemptOrder(
        group=group,
        without=without,
        may_wait=may_wait,
        world_size=spec.world_size.max,
        environment=long_run_environment(group, spec.environment),
        schedule_timeout_s=spec.limits.schedule_timeout_s,
        collective_timeout_s=_COLLECTIVE_TIMEOUT_S,
        hang_timeout_s=spec.limits.hang_timeout_s,
    )


def _make_task(
    spec: RunSpec,
    store: Store,
    repository: Repository,
    group: WorkerGroup,
    beginning: "_Beginning",
    tokens: Tokens | None,
    rivals: Rivals,
    world_size: int,
    leased_s: float,
) -> Task:
    """Takes the lease: whoever ran before is fenced from here on."""
    rivals.refuse()
    run = repository.run
    term = repository.take_over(
        f"{socket.gethostname()}:{os.getpid()}", fresh=beginning.is_fresh(repository.view)
    )
    samples = num_samples(spec, tokens)
    described = _described(spec, tokens)
    store.put(f"runs/{run}/spec.json", json.dumps(described, indent=1).encode())
    return Task(
        run=run,
        store=store.url,
        recipe=spec.recipe(world_size, num_steps=spec.num_steps(samples)),
        vendor=group.vendor,
        simulated=group.simulated,
        may_mix_devices=group.may_mix_devices,
        num_steps=spec.num_steps(samples),
        num_samples=samples,
        saving=spec.saving(),
        term=term,
        leased_s=leased_s,
        attempt=secrets.token_hex(4),
        lineage=repository.lineage(),
        resume=beginning.resume(repository.view),
        origin=beginning.origin,
        eval_every=spec.eval.every_steps,
        eval_samples=spec.eval.samples,
        spec=described,
        group=group.name,
        recording=spec.recording(),
        tokens=tokens,
        weights=str(_absolute(spec.weights)) if spec.weights else None,
        spike_bound=spec.guard.bound(),
    )


def _absolute(place: str) -> Path:
    return Path(place).expanduser().absolute()


def _described(spec: RunSpec, tokens: Tokens | None) -> Mapping[str, Any]:
    """What is stored with the run. Values of variables stay out: they may be secrets."""
    described = {**spec.model_dump(mode="json"), "environment": sorted(spec.environment)}
    recipe = spec.recipe(num_steps=spec.num_steps(num_samples(spec, tokens)))
    described["optimizer"]["decay_steps"] = recipe.optimizer.decay_steps
    if tokens:
        described["data"] |= {"digest": tokens.index.digest, "samples": tokens.windows.num_samples}
    return described


def _beginning(
    resume: str, repository: Repository, spec: RunSpec, *, fresh: bool
) -> tuple[Origin | None, str]:
    """Another run to start from, and which of its own generations to go on from; both there, or an error.

    ``--resume`` may name another run by its place in a store: then that run's latest is the beginning.
    """
    url, slash, name = resume.rstrip("/").rpartition("/runs/")
    if not slash:
        if resume != "latest" and fresh:
            raise SpecError([f"--resume {resume} and --fresh exclude each other; give one of them"])
        if resume != "latest":
            find(repository.refresh(), resume, spec.checkpoint.retention.policy())
        return None, resume
    store = open_store(url, base=store_base())
    if Repository(store, name).refresh().term == 0:
        raise NothingToResume(f"--resume {resume}: there is no run {name!r} in {store.url}")
    return Origin(store=store.url, run=name), "latest"
