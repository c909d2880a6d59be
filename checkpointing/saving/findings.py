"""Findings beside a save that ended well: what is wrong, but costs no save. Told once an hour."""

import time
from collections.abc import Callable, Mapping

from checkpointing.stores.contract import StoreError

_EVERY_S = 3600.0


class HourlyFinding:
    """Passes a finding on once an hour for as long as there is one; one that comes again is told at once."""

    def __init__(self, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._silent_until = float("-inf")

    def due(self, finding: str | None) -> str | None:
        if finding is None:
            self._silent_until = float("-inf")
        if finding is None or self._ticks() < self._silent_until:
            return None
        self._silent_until = self._ticks() + _EVERY_S
        return finding


def not_deleted_text(refused: Mapping[str, StoreError]) -> str | None:
    """Says that generations could not be deleted, with the newest reason; None if there are none."""
    if not refused:
        return None
    name, error = list(refused.items())[-1]
    which = name if len(refused) == 1 else f"{len(refused)} generations such as {name}"
    return f"{which} could not be deleted, tried again after an hour: {error}"
