"""Carries out jobs and attempts without Ray: in this process on one rank, or on the ranks of ``torchrun``.

Sessions and events are the same as in ``ray_train``. Only runs of this world size are done. A failure leaves
its result row. With one rank, the next run follows. Under ``torchrun`` the peers may be stuck in a
collective. So the rank that failed reports its failure and the job ends; running it again goes on, also with
a search for the largest micro-batch.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from cluster.inventory import ClusterError
from cluster.local_ray.variables import variables
from cluster.probe import door
from cluster.probe.gloo_store import for_default_group
from cluster.probe.interfaces import towards
from cluster.probe.meeting import Stranger, on_loopback, prove
from cluster.probe.roll_call import COMING_S, Rank0Gone, Unmet, all_met, connecting_s, told_if_late
from cluster.probe.signed_store import SignedStore
from jobs.commandline.exit_codes import EXIT_FAILED
from jobs.commandline.usage_error import SpecError
from jobs.execution.causes import cause_of
from jobs.execution.executor import MakeTask, PeersFailed
from jobs.execution.messages import Event, Finished, Session, Started
from jobs.execution.outcomes import EXPECTED, Completed, Failed, Outcome, StoreAway, Unmendable, outcome_of
from jobs.launch.torchrun import LauncherPlace, ended_with_torchrun
from jobs.training.benchmark.largest import measure_job
from jobs.training.health.failures import AgreedFailure, failure_of
from jobs.training.health.problems import Problem, error_of, problem_of
from jobs.training.loop.attempt import Services, run
from jobs.training.ranks.gathering import from_rank_0
from jobs.training.task.context import Context
from jobs.training.task.events import RunEvent
from jobs.training.task.job import Job
from jobs.training.task.measurement import Failure, Measurement
from jobs.training.task.search.largest_batch import BatchSearch
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

_COLLECTIVE_TIMEOUT_S = 1800.0
# A task names every shard of the tokens.
_MOST_TASK_BYTES = 2**28
_ERRORS: Mapping[str, Callable[[str], Exception]] = {
    "SpecError": lambda text: SpecError(text.split("\n")),
    "ClusterError": ClusterError,
}


def run_inline(sessions: Iterable[Session], place: LauncherPlace, listen: Callable[[Event], None]) -> None:
    """Runs all jobs of ``sessions``, which are of this place's world size. Every rank calls this.

    Each session is asked for when those before it are done. Rank 0's sessions count: it alone hears results,
    on which later sessions may depend. The caller sets the environment, before torch is imported.
    """
    with _process_group(place, _COLLECTIVE_TIMEOUT_S) as device:
        context = _context(place, device)
        try:
            with ended_with_torchrun():
                prove(place.key)
        except Stranger as error:
            raise PeersFailed(str(error)) from error
        jobs = (job for session in sessions for job in session.jobs)
        for job in jobs if place.world_size == 1 else _as_rank_0(jobs, place.rank):
            _run(job, context, listen)


def attempt_inline(
    make_task: MakeTask,
    place: LauncherPlace,
    hear: Callable[[RunEvent], None],
    stop_request: Callable[[], StopRequest | None],
    collective_timeout_s: float,
) -> Outcome:
    """Runs one attempt of a long run. Every rank calls this; ``make_task`` is called by rank 0 alone.

    A stop request to any rank stops all ranks.
    """
    with _process_group(place, collective_timeout_s) as device:
        context = _context(place, device)
        try:
            with ended_with_torchrun():
                prove(place.key)
                task = _shared_task(make_task, place)
            if not isinstance(task, Task):
                return task
            run(task, context, Services(report=hear, stop_request=stop_request))
        except EXPECTED as error:
            return outcome_of(error)
        except Exception as error:
            failure = failure_of(error, context.status.phase, context.rank)
            failure = replace(failure, step=context.status.step)
            return Failed(failure=failure, cause=cause_of(failure))
        return Completed()


def _context(place: LauncherPlace, device: torch.device) -> Context:
    return Context(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        device=device,
        key=place.key,
    )


def _shared_task(make_task: MakeTask, place: LauncherPlace) -> Task | StoreAway | Unmendable:
    """The same task for all ranks, or rank 0's exception on all of them."""
    made = _try(make_task) if place.rank == 0 else None
    found = from_rank_0(_as_word(made) if made is not None else _Word(), _Word, most_bytes=_MOST_TASK_BYTES)
    return found.task or _not_made(made, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """What rank 0 does next; no job if that was all."""

    job: Job | None = None


def _as_rank_0(jobs: Iterator[Job], rank: int) -> Iterator[Job]:
    while job := from_rank_0(_Next(job=next(jobs, None)) if rank == 0 else _Next(), _Next).job:
        yield job


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    """What rank 0 tells the others: a task, that the store is ``away``, or what went wrong."""

    task: Task | None = None
    away: str | None = None
    problem: Problem | None = None
    is_unmendable: bool = False


def _try(make_task: MakeTask) -> Task | StoreAway | Unmendable | Exception:
    try:
        return make_task()
    except Exception as error:
        return error


def _as_word(made: Task | StoreAway | Unmendable | Exception) -> _Word:
    match made:
        case Task():
            return _Word(task=made)
        case StoreAway(reason=reason):
            return _Word(away=reason)
        case Unmendable(error=error):
            return _Word(problem=problem_of(error, _ERRORS), is_unmendable=True)
        case error:
            return _Word(problem=problem_of(error, _ERRORS))


def _not_made(made: Task | StoreAway | Unmendable | Exception | None, word: _Word) -> StoreAway | Unmendable:
    """The outcome on a rank without a task. Rank 0 has its own; other ranks make theirs from ``word``. An
    error that nobody expects is raised on all ranks.
    """
    if isinstance(made, StoreAway | Unmendable):
        return made
    if word.away is not None:
        return StoreAway(reason=word.away)
    assert word.problem is not None
    error = made if isinstance(made, Exception) else error_of(word.problem, _ERRORS)
    if word.is_unmendable:
        return Unmendable(error=error)
    raise error


def _run(job: Job, context: Context, listen: Callable[[Event], None]) -> None:
    if context.rank == 0:
        listen(Started(run_id=job.run_id))
    searches, kept = [job.search], list[Measurement]()
    try:
        measured = measure_job(job, context, searches.append, kept.append)
    except Exception as error:
        failure = _with_search(failure_of(error, context.status.phase, context.rank), searches[-1])
        is_whole = context.world_size == 1 or isinstance(error, AgreedFailure)
        if context.rank == 0 or not is_whole:
            outcome = kept[0].unprofiled(failure) if kept else failure
            listen(Finished(run_id=job.run_id, outcome=outcome))
        if not is_whole:
            raise PeersFailed(failure.reason) from error
    else:
        if measured is not None:
            listen(Finished(run_id=job.run_id, outcome=measured))


def _with_search(failure: Failure, search: BatchSearch | None) -> Failure:
    return replace(failure, search=search.ran_out() if search and failure.status == "oom" else search)


def _end_with(problem: Unmet) -> None:
    """Ends this rank, which waits in torch, where no exception reaches it. ``torchrun`` ends the others."""
    print(problem, file=sys.stderr, flush=True)
    os._exit(EXIT_FAILED)


@contextmanager
def _process_group(place: LauncherPlace, collective_timeout_s: float) -> Iterator[torch.device]:
    device = door.take_near(place.local_rank) if door.is_there() else torch.device("cpu")
    if place.rank == 0 and device.type == "cpu" and (kind := door.unusable_kind()):
        print(
            f"{kind}: nothing is computed on this machine's device; its ranks take the CPU",
            file=sys.stderr,
            flush=True,
        )
    timeout = timedelta(seconds=collective_timeout_s)
    network = on_loopback() if place.is_of_one_machine else towards(os.environ["MASTER_ADDR"])
    with TemporaryDirectory(prefix="longhaul-") as folder, variables(network):
        with ended_with_torchrun():
            where = "env://" if place.world_size > 1 else f"file://{Path(folder) / 'rendezvous'}"
            meeting = rendezvous(where, place.rank, place.world_size, timeout=timeout)
            store, rank, size = next(meeting)
            # After a restart, ``torchrun`` may give the same store again, which knows the ranks of before.
            store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            store.set_timeout(timeout)
            try:
                # ``torchrun`` leaves no node out by what they say here.
                where, is_of_one = os.environ.get("MASTER_ADDR", "this machine"), place.is_of_one_machine
                unsigned = SignedStore(store, b"", where, is_open=not is_of_one)
                cards = all_met(unsigned, rank, size, of_one_machine=is_of_one, within_s=COMING_S)
                with told_if_late(cards, connecting_s(size), _end_with):
                    dist.init_process_group(
                        door.collective_backend(device),
                        store=for_default_group(store, place.key, where) if device.type == "cpu" else store,
                        rank=rank,
                        world_size=size,
                        timeout=timeout,
                        device_id=None if device.type == "cpu" else device,
                    )
            except (Unmet, Rank0Gone) as problem:
                # All ranks end with the same sentence, which is all that anybody needs.
                print(problem, file=sys.stderr, flush=True)
                raise SystemExit(EXIT_FAILED) from None
        try:
            yield device
        finally:
            dist.destroy_process_group()
