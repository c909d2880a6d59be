"""Runs a function on several ranks: real processes, one gloo process group, a deadline for everything.

For tests of what happens inside a worker, without Ray around it.
"""

import datetime
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

_SPAWN = multiprocessing.get_context("spawn")


class RankFailed(AssertionError):
    """A rank raised, died or was not done in time. Says which, and how; the other ranks were ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    rank: int
    world_size: int
    rendezvous: Path
    deadline_s: float


def run_ranks(
    function: Callable[..., T], *args: Any, num_ranks: int, tmp_path: Path, deadline_s: float = 300.0
) -> list[T]:
    """What ``function(*args)`` returned on each rank, in the order of the ranks.

    ``function`` lives at the top level of a module, and arguments and values can be pickled: the ranks
    are spawned. None of them outlives this call.
    """
    rendezvous = _unused_file(tmp_path)
    children: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(num_ranks):
            place = _Place(rank=rank, world_size=num_ranks, rendezvous=rendezvous, deadline_s=deadline_s)
            children.append(_start(place, function, args))
        return _collect([answers for _, answers in children], time.monotonic() + deadline_s)
    finally:
        for child, _ in children:
            child.kill()
            child.join()


def _unused_file(folder: Path) -> Path:
    """A new name each time: a rendezvous file that was used before makes the next group hang."""
    return folder / f"rendezvous-{time.monotonic_ns()}"


def _start(
    place: _Place, function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[BaseProcess, Connection]:
    ours, theirs = _SPAWN.Pipe(duplex=False)
    child = _SPAWN.Process(target=_be_a_rank, args=(place, theirs, function, args), daemon=True)
    child.start()
    theirs.close()  # Else the pipe never ends, and a rank that dies silently looks like a slow one.
    return child, ours


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    values: dict[int, Any] = {}
    while len(values) < len(pipes):
        pending = [pipe for rank, pipe in enumerate(pipes) if rank not in values]
        ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [rank for rank in range(len(pipes)) if rank not in values]
            raise RankFailed(f"ranks {late} were not done in time")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type] # wait() also takes sockets; these are pipes
            values[rank] = _receive(rank, pipes[rank])
    return [values[rank] for rank in range(len(pipes))]


def _receive(rank: int, pipe: Connection) -> Any:
    try:
        error, value = pipe.recv()
    except EOFError:
        raise RankFailed(f"rank {rank} died without a word") from None
    if error is not None:
        raise RankFailed(f"rank {rank} raised:\n{error}")
    return value


def _be_a_rank(
    place: _Place, answers: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Also on a machine that has some: the group is gloo's.
    try:
        _join(place)
        answers.send((None, function(*args)))
    except BaseException:
        answers.send((traceback.format_exc(), None))
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
