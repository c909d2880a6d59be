"""``runs/<run>/status.json``: the newest report of a driver on its run."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, check_name

_INTERVAL_S = 2.0
_MOST_BYTES = 1_000_000
_MOST = 1e300  # Whole numbers beyond it may be no floats.
_TEXTS = {"stage", "why", "driver", "group"}
_NUMBERS = {
    "num_steps",
    "loss",
    "tokens_per_s",
    "data_wait_share",
    "checked_step",
    "durable_step",
    "durable_s",
    "since_s",
    "retry_at_s",
    "eta_s",
}
# Numbers that are never null.
_ALWAYS = {"step", "attempt", "told_s", "num_failed_saves", "num_skipped_saves"}


class StatusFile:
    """Writes the status file in a thread of its own, so that a store that is away blocks nobody. Used as a
    context.

    What an earlier driver wrote stays until this one reports otherwise, except its attempt. If this driver
    ``is_fresh``, nothing stays. ``driver`` marks this driver's reports. Nothing is written unless
    ``may_speak`` allows it.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        driver: str | None = None,
        *,
        is_fresh: bool = False,
        may_speak: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._name = _name_of(run)
        self._run = run
        self._driver = driver
        self._before: Mapping[str, Any] | None = {} if is_fresh else None
        self._may_speak = may_speak
        self._newest: Mapping[str, Any] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)

    def __enter__(self) -> "StatusFile":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the last report a moment to arrive, no more."""
        self._done.set()
        self._thread.join(2 * _INTERVAL_S)

    def tell(self, status: Mapping[str, Any]) -> None:
        self._newest = status

    def _work(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            self._write()
        self._write()

    def _write(self) -> None:
        if self._newest is None or not self._may_speak():
            return
        newest, self._newest = self._newest, None
        with suppress(StoreError):
            if self._before is None:
                told = read_status_file(self._store, self._run)
                self._before = {key: value for key, value in told.items() if key != "attempt"}
            self._store.put(self._name, self._body(newest))

    def _body(self, newest: Mapping[str, Any]) -> bytes:
        own = {"driver": self._driver} if self._driver else {}
        return json.dumps({**(self._before or {}), **newest, **own}).encode()


def read_status_file(store: Store, run: str) -> dict[str, Any]:
    """What the run's driver reported last; empty if there is no report that can be read."""
    try:
        told = json.loads(get_bounded(store, _name_of(run), most_bytes=_MOST_BYTES))
    except (Missing, TooLarge, ValueError, RecursionError):
        return {}
    return (
        {key: value for key, value in told.items() if _is_sound(key, value)} if isinstance(told, dict) else {}
    )


def _is_sound(key: str, value: object) -> bool:
    """Whether a value is of its key's type. Buckets have many writers, and this file is only advice."""
    if key in _TEXTS:
        return value is None or isinstance(value, str)
    if key in _NUMBERS:
        return value is None or _is_number(value)
    return key not in _ALWAYS or _is_number(value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_MOST < value < _MOST


def _name_of(run: str) -> str:
    return check_name(f"runs/{run}/status.json")
