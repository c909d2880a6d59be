"""Whether a start may go on with the run of its name: asked of the store before the lease is taken.

A crash refuses nobody: what speaks against a start is a spec that would make it another run, or a driver
that is seen at work while this one starts. No clock is compared with another one.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from checkpointing.stores.contract import Store, StoreError
from jobs.commandline.usage_error import Occupied
from jobs.run_progress.run_state import GOING_ON
from jobs.run_progress.status_file import told_of

# A driver tells every two seconds that it is there. Who has said nothing for so many looks is not.
_LOOK_EVERY_S = 1.0
_NUM_LOOKS = 10


class DriverPresence:
    """Listens for another driver of the run while this one starts. Used as a context.

    Who has no lease, as this one, is none. One that died may have had a last word on its way: only who speaks
    again after that is alive. ``own`` is this driver's word for itself, by which it is told from others. All
    write to one file, so it asks whether it ``may_speak`` before it does. ``pause`` waits so many seconds.
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
        # Looks since the newest word of one that may be at work.
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
        """``Occupied`` if one is at work. Waits only if one was, or ``is_expected``. ``StoreError`` if the
        store can't tell. Once it has let this one pass, it says nothing any more.
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
        """What was heard before may be hours old: this start may have waited for room as long.

        One that ``is_expected`` is listened for whatever the last word is.
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
        """Not while another one may; what it has said by now is heard first."""
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
        """Whether there is a new word of one that may be at work."""
        told = told_of(self._store, self._run)
        if told == self._heard or told.get("driver") == self.own:
            return False
        self._heard = told
        if not _is_at_work(told):
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
            f"--store {self._store.url}), train under another name (--run NAME), or end it with --take-over"
        )


def _is_at_work(told: Mapping[str, Any]) -> bool:
    """Drivers of an older version don't say whether they have a lease."""
    return told.get("stage") in GOING_ON and bool(told.get("has_lease", True))
