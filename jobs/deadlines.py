"""A call that may never return is waited for so long and no longer."""

from collections.abc import Callable
from typing import TypeVar

from checkpointing.transfers import Progress, Stalled, finish

Answer = TypeVar("Answer")


def within(timeout_s: float, do: Callable[[], Answer]) -> Answer:
    """What it returns or raises; ``TimeoutError`` once the time is over. It goes on by itself then, in a
    thread of its own that keeps no process alive.
    """
    try:
        return finish(do, Progress(timeout_s))
    except Stalled:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
