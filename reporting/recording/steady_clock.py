"""A steady clock gives times since 1970 that never jump, even if the machine's clock is set. Pure."""

import time
from collections.abc import Callable

# The longest time believed between a lease and its workers' start: they wait for a placement, then processes
# start.
_LONGEST_START_S = 6 * 3600.0


def steady(
    clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Returns a clock that is right when it is made, and advances with ``ticks`` from then on."""
    offset = clock() - ticks()
    return lambda: ticks() + offset


def started_s(leased_s: float, now_s: float) -> float:
    """Returns when a worker begins, by the clock of the driver that has the lease.

    That is ``now_s``, from the worker's clock, if it lies within ``_LONGEST_START_S`` after the lease.
    Otherwise one of the two clocks must be wrong, and the worker is taken to begin at ``leased_s``.
    """
    return now_s if 0 <= now_s - leased_s <= _LONGEST_START_S else leased_s
