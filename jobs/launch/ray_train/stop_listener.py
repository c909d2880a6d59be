"""Listens for stop requests to a rank while its training thread works. The thread here only asks; Ray is not
used.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jobs.training.task.stop_request import StopRequest, stronger

INTERVAL_S = 0.5


@contextmanager
def hearing(
    ask: Callable[[], StopRequest | None], *, interval_s: float = INTERVAL_S
) -> Iterator[Callable[[], StopRequest | None]]:
    """Yields a call that returns at once the stop request heard so far. A stop request is never taken back.

    ``ask`` is called again and again from a thread of its own; an exception from ``ask`` means nothing.
    """
    heard = _Heard()
    done = threading.Event()
    thread = threading.Thread(target=_ask, args=(ask, heard, done, interval_s), name="hearing", daemon=True)
    thread.start()
    try:
        yield lambda: heard.stop_request
    finally:
        done.set()
        thread.join(2 * interval_s)


class _Heard:
    stop_request: StopRequest | None = None


def _ask(
    ask: Callable[[], StopRequest | None], heard: _Heard, done: threading.Event, interval_s: float
) -> None:
    while not done.wait(interval_s):
        # A busy driver may answer next time; a driver that is gone ends this process too.
        with suppress(Exception):
            heard.stop_request = stronger(heard.stop_request, ask())
