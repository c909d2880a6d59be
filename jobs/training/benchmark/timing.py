"""Times steps: by the host's clock, or by the device's. Both timers have the same methods.

``mark`` is called at every step boundary and costs well below a microsecond of work. No time is read, and no
device is synchronised, before the window is over.
"""

import time
from itertools import pairwise
from statistics import median

import torch

ROLLING = 5
SETTLED = 0.01


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

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def step_times_s(self) -> list[float]:
        """Waits for the device, so call it only after the window."""
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(self._events)]


def has_settled(step_times_s: list[float]) -> bool:
    """Whether the last step moved the rolling median of five step times by less than 1 %."""
    if len(step_times_s) <= ROLLING:
        return False
    before = median(step_times_s[-ROLLING - 1 : -1])
    return abs(median(step_times_s[-ROLLING:]) - before) < SETTLED * before
