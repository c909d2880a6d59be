"""Times steps: by the host's clock, or by the device's. Both timers have the same methods.

``mark`` is called at every step boundary and costs well below a microsecond of work. No time is read, and no
device is synchronised, before the window is over.
"""

import time
from itertools import pairwise
from statistics import median

import torch

from cluster.probe import door
from reporting.results.formulas import trend_of

ROLLING = 5
# Of the rolling median, with each of as many steps.
_SETTLED = 0.01
# By how much the newest steps may get faster or slower: so many of them, by this share.
_STEADY = ((10, 0.02), (20, 0.04))
# A trend within so many standard errors of it is noise.
_ERRORS = 2.0


class HostTimer:
    """Times steps by the host's monotonic clock, which is right if the work itself runs on the host."""

    def __init__(self) -> None:
        self._marks_ns: list[int] = []

    def mark(self) -> None:
        """Marks a step boundary: the end of one step and the start of the next."""
        self._marks_ns.append(time.perf_counter_ns())

    def step_times_s(self) -> list[float]:
        return [(after - before) / 1e9 for before, after in pairwise(self._marks_ns)]


class DeviceTimer:
    """Times steps by events on the compute stream: the device's own time, without synchronising it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[door.Event] = []

    def mark(self) -> None:
        self._events.append(door.event(self._device))

    def step_times_s(self) -> list[float]:
        """Waits for the device, so call it only after the window."""
        door.synchronize(self._device)
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(self._events)]


def has_settled(step_times_s: list[float]) -> bool:
    """Whether none of the last five steps moved the rolling median of five by 1 %, and the newest steps show
    no trend: 2 % over ten of them, 4 % over twenty.

    Steps that are noisier than that settle nonetheless: what can't be told from their noise is no movement.
    """
    newest, _ = _STEADY[0]
    if len(step_times_s) < newest:
        return False
    ends = range(len(step_times_s) - ROLLING, len(step_times_s) + 1)
    medians = [median(step_times_s[end - ROLLING : end]) for end in ends]
    moved = max(abs(after - before) / before for before, after in pairwise(medians))
    if moved >= max(_SETTLED, _noise(step_times_s[-newest:])):
        return False
    trends = ((trend_of(step_times_s[-number:]), share) for number, share in _STEADY)
    return not any(trend and trend.exceeds(share, errors=_ERRORS) for trend, share in trends)


def _noise(step_times_s: list[float]) -> float:
    """The standard deviation of steps without their outliers, relative to their median."""
    middle = median(step_times_s)
    return 1.4826 * median(abs(seconds - middle) for seconds in step_times_s) / middle
