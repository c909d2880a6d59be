"""Measures how fast this rank is by itself. Step times can't show it: ranks wait for each other.

Every 5 s the same small test product and the same copy are timed. The copy goes from host memory to the
device; of a CPU, within host memory. On a device they run on the training's own stream and do not hold it up,
since events are read only once they are there; on a CPU they take some milliseconds. They draw no random
number and reuse their memory, so the training is the same to the bit.
"""

import time
from collections.abc import Callable

import torch

from cluster.probe import door
from jobs.training.task.context import Context

_EVERY_S = 5.0
_CPU_SIZE, _CPU_TIMES = 192, 4
_DEVICE_SIZE, _DEVICE_TIMES = 2048, 16
# More than the caches of one core have.
_COPIED_BYTES = 16 * 2**20


class RankSpeed:
    """Writes the newest times of product and copy to ``context.status``, ``pace_s`` and ``copy_s``; 0 before
    the first.
    """

    def __init__(self, context: Context, ticks: Callable[[], float] = time.perf_counter) -> None:
        self._status = context.status
        self._is_on_cpu = context.device.type == "cpu"
        self._ticks = ticks
        self._next_s = ticks() + _EVERY_S
        size = _CPU_SIZE if self._is_on_cpu else _DEVICE_SIZE
        dtype = torch.float32 if self._is_on_cpu else torch.bfloat16
        self._factor = torch.full((size, size), 1e-3, dtype=dtype, device=context.device)
        self._product = torch.empty_like(self._factor)
        source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
        self._source = source if self._is_on_cpu else door.pinned(source, context.device)
        self._target = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=context.device)
        # Before the product, between it and the copy, and after the copy.
        self._events: tuple[door.Event, door.Event, door.Event] | None = None

    def update(self) -> None:
        """Reads and starts timings; call it at every step boundary."""
        if self._events is not None and self._events[-1].query():
            begin, middle, end = self._events
            self._status.pace_s = begin.elapsed_time(middle) / 1e3
            self._status.copy_s = middle.elapsed_time(end) / 1e3
            self._events = None
        if self._ticks() >= self._next_s:
            self._next_s = self._ticks() + _EVERY_S
            if self._is_on_cpu:
                self._time_here()
            else:
                self._begin_on_device()

    def _time_here(self) -> None:
        started = self._ticks()
        self._multiply(_CPU_TIMES)
        multiplied = self._ticks()
        self._copy()
        self._status.pace_s, self._status.copy_s = multiplied - started, self._ticks() - multiplied

    def _begin_on_device(self) -> None:
        if self._events is None:
            device = self._factor.device
            begin = door.event(device)
            self._multiply(_DEVICE_TIMES)
            middle = door.event(device)
            self._copy()
            self._events = begin, middle, door.event(device)

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._factor, self._factor, out=self._product)

    def _copy(self) -> None:
        self._target.copy_(self._source, non_blocking=True)
