"""Lets SIGTERM and SIGHUP interrupt a command as Ctrl-C does: those of schedulers, services, terminals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C too: where a class is just being made, Python turns its exception into another one.
INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupting_signals() -> Iterator[None]:
    """Inside, each of them raises ``KeyboardInterrupt``, unless it is ignored, as by ``nohup``.

    An error that comes of it becomes ``KeyboardInterrupt`` too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in heeded(INTERRUPTING)}
    try:
        yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeded(numbers: tuple[signal.Signals, ...]) -> list[signal.Signals]:
    """Those that the caller did not ask to ignore."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
