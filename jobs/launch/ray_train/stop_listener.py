"""Hears what a rank is wished while its training thread works. A thread that only asks; no Ray in here."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jobs.training.task.stop_request import StopRequest, stronger

INTERVAL_S = 0.5


@contextmanager
def hearing(
    ask: Callable[[], StopRequest | None], *, interval_s: float = INTERVAL_S
) -> Iterator[Callable[[], StopRequest | None]]:
    """Inside, the call that it gives tells at once what was heard so far; a wish is never taken back.

    ``ask`` is called from a thread of its own, again and again; that it raises says nothing.
    """
    heard = _Heard()
    done = threading.Event()
    thread = threading.Thread(target=_ask, args=(ask, heard, done, interval_s), name="hearing", daemon=True)
    thread.start()
    try:
        yield lambda: heard.wish
    finally:
        done.set()
        thread.join(2 * interval_s)


class _Heard:
    wish: StopRequest | None = None


def _ask(
    ask: Callable[[], StopRequest | None], heard: _Heard, done: threading.Event, interval_s: float
) -> None:
    while not done.wait(interval_s):
        # A driver that is busy may answer next time; one that is gone takes this process with it.
        with suppress(Exception):
            heard.wish = stronger(heard.wish, ask())
