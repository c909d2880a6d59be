"""Listens whether a run's driver still reports. Only changes count: no other machine's clock is read.

A driver writes its status every two seconds.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from checkpointing.stores.contract import Store
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import read_status_file

Report = Mapping[str, Any]

LISTENED_S = 10.0
_LOOK_EVERY_S = 1.0
# Whoever looks on for long need not call a driver silent whose store is slow for a moment.
_SILENT_AFTER_S = 30.0


def is_going_on(report: Report) -> bool:
    """Whether the driver that wrote the report was at work, so that it would report again."""
    return report.get("stage") in GOING_ON


def listen(
    store: Store, run: str, report: Report, *, pause: Callable[[float], None] = time.sleep
) -> Report | None:
    """Returns a report that differs from ``report``; None if there is none within ``LISTENED_S``.

    Looks once before it waits.
    """
    for _ in range(round(LISTENED_S / _LOOK_EVERY_S)):
        if (newer := read_status_file(store, run)) and newer != report:
            return newer
        pause(_LOOK_EVERY_S)
    newer = read_status_file(store, run)
    return newer if newer and newer != report else None


class Ear:
    """Remembers since when a driver's reports have not changed, for those who look again and again."""

    def __init__(self, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._report: Report | None = None
        self._changed_s = ticks()

    def hears(self, report: Report) -> bool:
        """Whether the driver is at work as far as is known: a first report counts as new."""
        if report != self._report:
            self._report, self._changed_s = report, self._ticks()
        return self._ticks() - self._changed_s <= _SILENT_AFTER_S
