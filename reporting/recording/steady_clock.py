"""Times since 1970 that never jump, whoever sets the machine's clock meanwhile. Pure."""

import time
from collections.abc import Callable

# From a lease until its workers run: their place is waited for, and processes start.
_LONGEST_START_S = 6 * 3600.0


def steady(
    clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Right when it is made; from then on it goes as ``ticks`` do."""
    offset = clock() - ticks()
    return lambda: ticks() + offset


def started_s(leased_s: float, now_s: float) -> float:
    """When a worker begins, by the clock of the driver that has the lease: ``now_s``, which its own shows,
    unless that can't be, since somebody set one of the two. Then it is taken to begin with the lease.
    """
    return now_s if 0 <= now_s - leased_s <= _LONGEST_START_S else leased_s
