"""Keeps Ray's processes alive when a stop request is sent to all processes at once. Pure.

``scancel``, a control group that is stopped, and the end of a job's wall time send SIGTERM to every process.
The driver hears it, stops at a step and saves, and needs its workers for that.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP})


@contextmanager
def deaf_children() -> Iterator[None]:
    """Blocks the stop signals in processes that are started inside the block, and in all that those start.

    Ray and libraries set handlers of their own, which a blocked signal never reaches. Such a process ends by
    SIGKILL, or by itself. Only the calling thread is deaf meanwhile: it hears what came when the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_deaf(command: Sequence[str]) -> None:
    """Becomes ``command``, with the stop signals blocked in it and in all that it starts.

    Whoever starts it ends it with SIGKILL.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        sys.exit(f"there is no {command[0]} on PATH, which is {os.environ.get('PATH', '')}")
