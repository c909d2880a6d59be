"""What leaves the last state of a worker's rank, where Train's controller can call it when a peer is gone.

Nothing here imports torch: the controller imports this module too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_offers: list[Callable[[], None]] = []


@contextmanager
def offering(leave: Callable[[], None]) -> Iterator[None]:
    """Inside, ``leave_last_state`` calls ``leave``."""
    _offers.append(leave)
    try:
        yield
    finally:
        _offers.remove(leave)


def leave_last_state() -> None:
    """Called in each worker by the controller, beside the thread that trains."""
    for leave in list(_offers):
        leave()
