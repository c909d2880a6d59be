"""Checks whether another driver is active on the run; asks the store before the lease is taken.

A crashed driver never blocks a start: only a driver that reports while this one starts does. A spec that
would make it another run is refused in ``resume_checks``. Clocks of two machines are never compared.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from checkpointing.stores.contract import Store, StoreError
from jobs.commandline.usage_error import Occupied
from jobs.launch.torchrun import name_flag
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import read_status_file

# A driver writes its status every two seconds. After so many looks without a new status it counts as gone.
_LOOK_EVERY_S = 1.0
_NUM_LOOKS = 10


class DriverPresence:
    """Watches for another active driver of the run while this one starts. Used as a context.

    A driver without a lease, such as this one, does not count as active. The last status of a dead driver may
    arrive late, so only a driver that reports again after it counts.

    ``own`` marks the status of this driver. All drivers write one file, so each asks ``may_speak`` before it
    writes. ``pause`` waits so many seconds. Unless ``is_wanted``, no other driver is looked for.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        is_wanted: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.own = secrets.token_hex(4)
        self._store = store
        self._run = run
        self._is_settled = not is_wanted
        self._pause = pause
        self._lock = threading.Lock()
        self._heard: Mapping[str, Any] | None = None
        self._num_words = 0
        # Looks since the newest status of a driver that may be active.
        self._num_silent = _NUM_LOOKS
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rivals", daemon=True)

    def __enter__(self) -> Self:
        if not self._is_settled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def refuse(self, *, is_expected: bool = False) -> None:
        """Raises ``Occupied`` if another driver is active, and ``StoreError`` if the store cannot tell.

        Waits only if another driver was seen, or ``is_expected``. Once this driver was let pass, later calls
        return at once.
        """
        if self._is_settled:
            return
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._heard is None:
            self.look()
        if self.is_one_alive(is_expected=is_expected):
            raise Occupied([self._sentence()])
        self._is_settled = True

    def is_one_alive(self, *, is_expected: bool = False) -> bool:
        """Whether another driver reports twice while this call listens.

        Earlier reports do not count: they may be hours old if this start has waited for room. With
        ``is_expected`` the call listens whatever the last status is.
        """
        self._num_words = 0
        if is_expected:
            self._num_silent = 0
        while self._is_listening():
            self._pause(_LOOK_EVERY_S)
            self.look()
            if self._num_words >= 2:
                return True
        return False

    def may_speak(self) -> bool:
        """Whether this driver may write the status file: not while another driver may be active. Looks once
        first.
        """
        if self._is_settled:
            return True
        with suppress(StoreError), self._lock:
            self._hear()
        return not self._is_listening()

    def look(self) -> None:
        with self._lock:
            if not self._hear():
                self._num_silent += 1

    def _hear(self) -> bool:
        """Whether there is a new status of a driver that may be active."""
        reported = read_status_file(self._store, self._run)
        if reported == self._heard or reported.get("driver") == self.own:
            return False
        self._heard = reported
        if not _is_at_work(reported):
            return False
        self._num_silent = 0
        self._num_words += 1
        return True

    def _is_listening(self) -> bool:
        return self._num_silent < _NUM_LOOKS

    def _work(self) -> None:
        while True:
            with suppress(StoreError):
                self.look()
            if self._done.wait(_LOOK_EVERY_S):
                return

    def _sentence(self) -> str:
        step = self._heard.get("step") if self._heard else None
        where = f", at step {step}" if step is not None else ""
        return (
            f"{self._run}: another driver is at work on it{where}; stop it first (longhaul stop {self._run} "
            f"--store {self._store.url}), train under another name ({name_flag()}), or end it "
            "with --take-over"
        )


def _is_at_work(reported: Mapping[str, Any]) -> bool:
    """Whether the status is of a driver with a lease. Older versions do not say so: they count as
    having one.
    """
    return reported.get("stage") in GOING_ON and bool(reported.get("has_lease", True))
