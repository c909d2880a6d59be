"""What ``torchrun`` says about this process, if it started it. Needs no torch."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

_KEY = "LONGHAUL_RUN_KEY"
_LOOK_EVERY_S = 1.0
_EXIT_ALONE = 1
# Who started this process, as it was when this was loaded: before anything is waited for.
_PARENT = os.getppid()


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherPlace:
    """The rank of this process and the number of ranks; rank 0 of 1 unless ``torchrun`` says otherwise.

    The rendezvous is torchrun's, open to every process that can connect to it. The user's launcher may give
    all ranks one random text in ``LONGHAUL_RUN_KEY``: their ``key``. A rank that does not know the key is
    rejected before anything it sends is used. Without a key, the network must keep all others from the
    rendezvous.
    """

    rank: int
    world_size: int
    local_rank: int
    is_of_one_machine: bool = True
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def of_this_process(cls) -> "LauncherPlace":
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            is_of_one_machine=os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1"),
            key=os.environ.get(_KEY, "").encode(),
        )


def is_under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def ended_with_torchrun(
    every_s: float = _LOOK_EVERY_S, end: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Ends this process if ``torchrun`` ends in the meantime: then nobody comes whom it waits for.

    A rank waits for its peers in torch, where no exception reaches it, so the process ends at once.
    """
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(done, every_s, end), name="torchrun's end", daemon=True)
    if is_under_torchrun():
        watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(done: threading.Event, every_s: float, end: Callable[[int], object]) -> None:
    while not done.wait(every_s):
        if os.getppid() != _PARENT:
            print(
                "torchrun has ended while this rank was starting, so it ends too", file=sys.stderr, flush=True
            )
            end(_EXIT_ALONE)
            return


def name_flag() -> str:
    """How to start a run under another name in the way that this process was started.

    ``torchrun`` takes ``--run`` for one of its own flags, unless ``--`` stands before the script.
    """
    flag = "--run NAME"
    return (
        f"{flag}; torchrun wants -- before the script then: -m -- jobs.cli" if is_under_torchrun() else flag
    )


def command_again(words: Sequence[str]) -> list[str]:
    """The command of ``longhaul`` with these ``words``, started as this process was."""
    if not is_under_torchrun():
        return ["longhaul", *words]
    num_ranks, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    # Other machines meet where their launchers say, which ranks are not told.
    nodes = (
        ["--standalone"]
        if num_ranks == here
        else [f"--nnodes={num_ranks // here}", "--rdzv_endpoint=HOST:PORT"]
    )
    return ["torchrun", *nodes, f"--nproc_per_node={here}", "-m", "--", "jobs.cli", *words]
