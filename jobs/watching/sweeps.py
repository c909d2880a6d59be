"""Reads what the store says of one sweep, while it goes on."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from checkpointing.errors import NothingToResume
from checkpointing.stores.contract import Missing, Store, check_name
from jobs.run_progress.sweep_progress import read_sweep_progress
from jobs.watching.bounded_store import BoundedStore
from reporting.results.gathering import gather
from reporting.results.rows import Row

_MOST_NAMES = 1_000_000
# Its driver tells something every 2 s.
_SILENT_AFTER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSeen:
    """``title`` names a cell among the sweep's. ``tokens_per_sec`` has that of each run that is ok."""

    title: str
    statuses: Counter[str]
    tokens_per_sec: tuple[float, ...]
    simulated: bool
    reason: str | None

    @property
    def median(self) -> float | None:
        return median(self.tokens_per_sec) if self.tokens_per_sec else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecords:
    """The results that are there. ``num_runs`` is how many ``sweep.json`` names, 0 if nobody can tell."""

    cells: tuple[CellSeen, ...]
    num_runs: int

    @property
    def num_results(self) -> int:
        return sum(sum(cell.statuses.values()) for cell in self.cells)

    @property
    def num_failed(self) -> int:
        return self.num_results - sum(cell.statuses["ok"] for cell in self.cells)

    def as_data(self) -> dict[str, Any]:
        cells = [
            {
                "cell": cell.title,
                "statuses": dict(cell.statuses),
                "tokens_per_sec": list(cell.tokens_per_sec),
                "simulated": cell.simulated,
                "reason": cell.reason,
            }
            for cell in self.cells
        ]
        return {
            "num_runs": self.num_runs,
            "num_results": self.num_results,
            "num_failed": self.num_failed,
            "cells": cells,
        }


class SweepReading:
    """``status`` and ``records`` may be called by one thread each."""

    def __init__(self, store: Store, sweep: str, *, clock: Callable[[], float] = time.time) -> None:
        self._store = BoundedStore(store)
        self._name = sweep
        self._clock = clock

    def status(self) -> dict[str, Any]:
        """The stage is None if no start is at work. Raises ``NothingToResume`` if there is no such sweep."""
        told = read_sweep_progress(self._store, self._name)
        if not told and not _has_sweep(self._store, self._name):
            raise NothingToResume(f"{self._store.url}: there is no sweep {self._name!r}")
        if (told_s := told.get("told_s")) is None:
            return {**told, "stage": None, "told_age_s": None}
        age_s = max(0.0, self._clock() - told_s)
        return {**told, "stage": "silent" if age_s > _SILENT_AFTER_S else "measuring", "told_age_s": age_s}

    def records(self) -> SweepRecords:
        rows = gather(self._store, sweeps=[self._name]).rows
        return SweepRecords(cells=_cells(rows), num_runs=_num_runs(self._store, self._name))


def _has_sweep(store: Store, sweep: str) -> bool:
    try:
        return store.size(check_name(f"sweeps/{sweep}/sweep.json")) >= 0
    except Missing:
        return False


def _num_runs(store: Store, sweep: str) -> int:
    try:
        found = json.loads(store.get(check_name(f"sweeps/{sweep}/sweep.json")))
        runs = found.get("runs") if isinstance(found, dict) else None
    except (Missing, ValueError, RecursionError):
        runs = None
    return len(runs) if isinstance(runs, list) else 0


def _cells(rows: Sequence[Row]) -> tuple[CellSeen, ...]:
    by_cell: dict[str, list[Row]] = {}
    for row in rows[:_MOST_NAMES]:
        by_cell.setdefault(row.cell_id or row.source, []).append(row)
    return tuple(_cell(of_cell) for of_cell in by_cell.values())


def _cell(rows: Sequence[Row]) -> CellSeen:
    first = rows[0]
    parts = [first.model, first.strategy, f"×{first.world_size}", f"seq {first.seq_len}", first.precision]
    batch = f"batch {first.per_device_batch}"
    return CellSeen(
        title=" ".join([first.group or "?", *(part for part in parts if part), batch]),
        statuses=Counter(row.status for row in rows),
        tokens_per_sec=tuple(row.tokens_per_sec for row in rows if row.status == "ok" and row.tokens_per_sec),
        simulated=any(row.simulated for row in rows),
        reason=next((row.error_reason for row in rows if row.error_reason), None),
    )
