"""Runs a function on several ranks: real processes, one gloo process group, a deadline for everything.

For tests of what happens inside a worker, without Ray around it.
"""

import datetime
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

_GRACE_S = 2.0
# Ranks are a CPU's, also on a machine with devices: their group is gloo's.
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
_SPAWN = multiprocessing.get_context("spawn")
# Its children begin with everything imported: a start takes a moment instead of seconds. What comes after the
# strategies is else imported by each rank in its first step, by torch, by its recorder and by pyarrow.
_EVERYTHING = ("tests.live.cpu_only", "tests.live.attempts")
_EVERYTHING += tuple(f"jobs.training.strategies.{name}" for name in ("ddp", "fsdp", "zero"))
_EVERYTHING += ("torch._dynamo", "reporting.recording.sinks", "pandas")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*_EVERYTHING])


class RankFailed(AssertionError):
    """A rank raised, died or was not done in time. Says which, and how; the other ranks were ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    rank: int
    world_size: int
    rendezvous: Path
    deadline_s: float
    environment: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    error: str = ""
    value: Any = None


def run_ranks(
    function: Callable[..., T],
    *args: Any,
    num_ranks: int,
    tmp_path: Path,
    deadline_s: float = 300.0,
    from_scratch: bool = False,
) -> list[T]:
    """What ``function(*args)`` returned on each rank, in the order of the ranks.

    ``function`` lives at the top level of a module, and arguments and values can be pickled: each rank is a
    process of its own. None of them outlives this call. ``from_scratch``: they have imported nothing before,
    and write where this process does at the moment.
    """
    rendezvous = _unused_file(tmp_path)
    children: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(num_ranks):
            place = _Place(
                rank=rank,
                world_size=num_ranks,
                rendezvous=rendezvous,
                deadline_s=deadline_s,
                environment=os.environ | ON_CPU,
            )
            children.append(_start(_SPAWN if from_scratch else FORKS, place, function, args))
        return _collect([answers for _, answers in children], time.monotonic() + deadline_s)
    finally:
        for child, _ in children:
            child.kill()
            child.join()


def _unused_file(folder: Path) -> Path:
    """A new name each time: a rendezvous file that was used before makes the next group hang."""
    return folder / f"rendezvous-{time.monotonic_ns()}"


def _start(
    context: SpawnContext | ForkServerContext,
    place: _Place,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> tuple[BaseProcess, Connection]:
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_be_a_rank, args=(place, theirs, function, args), daemon=True)
    with _variables(ON_CPU):  # What a new process imports first may already choose a device.
        child.start()
    theirs.close()  # Else the pipe never ends, and a rank that dies silently looks like a slow one.
    return child, ours


@contextmanager
def _variables(told: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= told
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    answers: dict[int, _Answer] = {}
    while len(answers) < len(pipes):
        pending = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for rank, pipe in enumerate(pipes):
            if pipe in ready:
                answers[rank] = _receive(pipe)
        if any(answer.error for answer in answers.values()):
            # A failure takes others with it: which one came first is not known, so tell of all.
            deadline = min(deadline, time.monotonic() + _GRACE_S)
    _raise_failures(answers, len(pipes))
    return [answers[rank].value for rank in range(len(pipes))]


def _receive(pipe: Connection) -> _Answer:
    try:
        answer: _Answer = pipe.recv()
    except EOFError:
        return _Answer(error="died without a word")
    return answer


def _raise_failures(answers: dict[int, _Answer], num_ranks: int) -> None:
    failures = [f"rank {rank} {answer.error}" for rank, answer in answers.items() if answer.error]
    late = [rank for rank in range(num_ranks) if rank not in answers]
    if late and not failures:
        failures.append(f"ranks {late} were not done in time")
    if failures:
        raise RankFailed("\n".join(failures))


def _be_a_rank(
    place: _Place, answers: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ |= place.environment
    try:
        _join(place)
        answers.send(_Answer(value=function(*args)))
    except BaseException:
        answers.send(_Answer(error=f"raised:\n{traceback.format_exc()}"))
    finally:
        answers.close()
        sys.stdout.flush()
        # No clean-up of the group: it would wait for ranks that failed. The process ends here.
        os._exit(0)


def _join(place: _Place) -> None:
    torch.set_num_threads(1)  # Ranks share the machine's cores.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.rendezvous}",
        rank=place.rank,
        world_size=place.world_size,
        timeout=datetime.timedelta(seconds=place.deadline_s),
    )
