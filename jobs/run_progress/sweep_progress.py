"""``sweeps/<sweep>/progress.json``: how far the start of a sweep is that is at work, and what it measures."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Self

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, check_name

_INTERVAL_S = 2.0
_END_TIMEOUT_S = 4.0
_MOST_RUNNING = 50
_MOST_BYTES = 64_000
_MOST_TEXT = 200
_NUMBERS = ("num_done", "num_failed", "num_runs", "elapsed_s", "remaining_s", "told_s")


class SweepProgress:
    """Counts what a start does, and writes it from a thread of its own. Used as a context.

    Its end takes the file away: results say more then. A store that is away delays no cell. ``num_runs`` is
    how many runs this start expects to do, which take ``expected_s`` as far as anybody knows before the first
    has ended.
    """

    def __init__(
        self,
        store: Store,
        sweep: str,
        *,
        num_runs: int,
        expected_s: float | None,
        ticks: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._name = _name_of(sweep)
        self._num_runs = num_runs
        self._expected_s = expected_s
        self._ticks = ticks
        self._clock = clock
        self._began_s = ticks()
        self._num_done = self._num_failed = 0
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sweep progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_END_TIMEOUT_S)
        if not self._thread.is_alive():
            with suppress(StoreError):
                self._store.delete(self._name)

    def runs(self, run: str, doing: str) -> None:
        with self._lock:
            self._running[run] = doing

    def finished(self, run: str, status: str) -> None:
        with self._lock:
            self._running.pop(run, None)
            self._num_done += 1
            self._num_failed += status != "ok"

    def record(self) -> dict[str, Any]:
        with self._lock:
            elapsed_s, left = self._ticks() - self._began_s, max(0, self._num_runs - self._num_done)
            remaining_s = elapsed_s / self._num_done * left if self._num_done else self._expected_s
            running = [f"{name}: {doing}"[:_MOST_TEXT] for name, doing in self._running.items()]
            return {
                "num_done": self._num_done,
                "num_failed": self._num_failed,
                "num_runs": max(self._num_runs, self._num_done),
                "elapsed_s": elapsed_s,
                "remaining_s": remaining_s,
                "running": running[:_MOST_RUNNING],
                "told_s": self._clock(),
            }

    def _work(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            with suppress(StoreError):
                self._store.put(self._name, json.dumps(self.record()).encode() + b"\n")


def read_sweep_progress(store: Store, sweep: str) -> dict[str, Any]:
    """What was told last; empty if nothing can be read. Buckets have many writers: other types are left
    out.
    """
    try:
        told = json.loads(get_bounded(store, _name_of(sweep), most_bytes=_MOST_BYTES))
    except (Missing, TooLarge, ValueError, RecursionError):
        return {}
    return _sound(told) if isinstance(told, dict) else {}


def _sound(told: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: told[name] for name in _NUMBERS if _is_number(told.get(name))}
    running = told.get("running")
    texts = [one for one in running if isinstance(one, str)] if isinstance(running, list) else []
    return {**found, "running": [one[:_MOST_TEXT] for one in texts[:_MOST_RUNNING]]}


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    with suppress(OverflowError):
        return is_number and isfinite(value) and abs(value) < 1e300  # type: ignore[arg-type]  # asked above
    return False


def _name_of(sweep: str) -> str:
    return check_name(f"sweeps/{sweep}/progress.json")
