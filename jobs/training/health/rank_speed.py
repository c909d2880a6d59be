"""Measures how fast this rank's device is by itself. Step times can't show it: ranks wait for each other.

Every 5 s the same small test product is timed on the training's own stream. On a device this does not hold up
the training, since events are read only once they are there; on a CPU it takes about a millisecond. The test
product draws no random number and reuses its memory, so the training is the same to the bit.
"""

import time
from collections.abc import Callable

import torch

from cluster.probe import door
from jobs.training.task.context import Context

_EVERY_S = 5.0
_CPU_SIZE, _CPU_TIMES = 192, 4
_DEVICE_SIZE, _DEVICE_TIMES = 2048, 16


class RankSpeed:
    """Writes the newest time of the test product to ``context.status.pace_s``; 0 before the first."""

    def __init__(self, context: Context, ticks: Callable[[], float] = time.perf_counter) -> None:
        self._status = context.status
        self._is_on_cpu = context.device.type == "cpu"
        self._ticks = ticks
        self._next_s = ticks() + _EVERY_S
        size = _CPU_SIZE if self._is_on_cpu else _DEVICE_SIZE
        dtype = torch.float32 if self._is_on_cpu else torch.bfloat16
        self._factor = torch.full((size, size), 1e-3, dtype=dtype, device=context.device)
        self._product = torch.empty_like(self._factor)
        self._begin_end: tuple[door.Event, door.Event] | None = None

    def update(self) -> None:
        """Reads and starts timings; call it at every step boundary."""
        if self._begin_end is not None and self._begin_end[1].query():
            begin, end = self._begin_end
            self._status.pace_s, self._begin_end = begin.elapsed_time(end) / 1e3, None
        if self._ticks() >= self._next_s:
            self._next_s = self._ticks() + _EVERY_S
            if self._is_on_cpu:
                self._time_here()
            else:
                self._begin_on_device()

    def _time_here(self) -> None:
        started = self._ticks()
        self._multiply(_CPU_TIMES)
        self._status.pace_s = self._ticks() - started

    def _begin_on_device(self) -> None:
        if self._begin_end is None:
            device = self._factor.device
            begin = door.event(device)
            self._multiply(_DEVICE_TIMES)
            self._begin_end = begin, door.event(device)

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._factor, self._factor, out=self._product)
