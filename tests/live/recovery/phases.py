"""What a rank was at when it was killed: it marks that in a file's memory, which outlives it."""

import ctypes
import mmap
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpointing.saving import snapshot
from checkpointing.saving.pace import Pace
from checkpointing.saving.snapshot import Copying
from checkpointing.saving.writer import Writer
from jobs.training.loop import attempt
from jobs.training.state import restoring, share_copies
from jobs.training.state.share_copies import ShareCopies

# Several may go on at once, in threads of one rank.
_WORKS: tuple[tuple[str, Any, str], ...] = (
    ("loading", attempt, "restore"),
    ("bringing shares", restoring, "bring_missing"),
    ("copying", Copying, "_copy"),
    ("waiting for the copy", Copying, "settle"),
    ("keeping in memory", ShareCopies, "keep"),
    ("sending to the peer", ShareCopies, "exchange"),
    ("writing to the disk", Writer, "_keep"),
    ("writing to the store", Writer, "_publish"),
)
_STARTING, _REPLAYING, _NEW_STEP = len(_WORKS), len(_WORKS) + 1, len(_WORKS) + 2
_NAMES = (*(name for name, _, _ in _WORKS), "starting", "replaying a step", "a new step")
# Behind the marks: the furthest step that any attempt has begun.
_FURTHEST = slice(len(_NAMES), len(_NAMES) + 8)
# Behind each tensor and each piece at most, half of the time.
_REST_S = 0.002
_PIECE_BYTES = 2**18


@contextmanager
def marking_phases(marks: Path) -> Iterator[None]:
    """Inside, this rank marks what it is at. ``marks`` is its file, also in its earlier attempts."""
    if not marks.exists():
        marks.write_bytes(bytes(_FURTHEST.stop))
    with marks.open("r+b") as file, pytest.MonkeyPatch.context() as patch:
        memory = mmap.mmap(file.fileno(), 0)
        _dwell(patch, random.Random(os.getpid()))
        memory[: len(_NAMES)] = bytes(len(_NAMES))
        memory[_STARTING] = 1
        for number, (_, owner, work) in enumerate(_WORKS):
            patch.setattr(owner, work, _marked(getattr(owner, work), memory, number))
        patch.setattr(attempt._Attempt, "_do_step", _step(attempt._Attempt._do_step, memory))
        yield


def _dwell(patch: pytest.MonkeyPatch, dice: random.Random) -> None:
    """Copies and what is sent take about as long as a step: else few kills would meet them, of a tiny model.

    Not each time, so that others are done before the step is.
    """

    def rest() -> None:
        time.sleep(max(0.0, dice.uniform(-_REST_S, _REST_S)))

    def move(*arguments: Any) -> None:
        ctypes.memmove(*arguments)
        rest()

    def rest_s(_pace: Pace, _took_s: float) -> float:
        return max(0.0, dice.uniform(-_REST_S, _REST_S))

    patch.setattr(snapshot, "ctypes", SimpleNamespace(memmove=move))
    patch.setattr(share_copies, "_PIECE_BYTES", _PIECE_BYTES)
    patch.setattr(Pace, "rest_s", rest_s)


def _marked(work: Callable[..., Any], memory: mmap.mmap, number: int) -> Callable[..., Any]:
    @wraps(work)
    def marked(*arguments: Any, **more: Any) -> Any:
        memory[_STARTING], memory[number] = 0, 1
        try:
            return work(*arguments, **more)
        finally:
            memory[number] = 0

    return marked


def _step(do_step: Callable[..., Any], memory: mmap.mmap) -> Callable[..., Any]:
    @wraps(do_step)
    def marked(training: Any) -> Any:
        step = training._position.step
        is_new = step > int.from_bytes(memory[_FURTHEST], "little")
        memory[_NEW_STEP], memory[_REPLAYING] = is_new, not is_new
        if is_new:
            memory[_FURTHEST] = step.to_bytes(8, "little")
        return do_step(training)

    return marked


def phases_of(marks: Path) -> list[str]:
    """What the rank was at when it ended; of one that ended before it could mark anything, "starting"."""
    found = marks.read_bytes() if marks.exists() else b""
    # The next one may end before it marks anything.
    marks.write_bytes(bytes(len(_NAMES)) + found[_FURTHEST].ljust(8, b"\0"))
    return [name for name, mark in zip(_NAMES, found, strict=False) if mark] or ["starting"]


def table(phases: Counter[str], num_killed: int) -> str:
    lines = [f"{name}: {phases[name]}" for name in _NAMES if phases[name]]
    return f"what {num_killed} killed ranks were at: {', '.join(lines)}"
