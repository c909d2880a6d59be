"""Keeps the incidents of a driver's attempts in memory until the store has them.

An incident is often that the store is away. No caller waits longer than a moment for the store.
"""

import logging
import threading
from contextlib import suppress
from typing import Self

from checkpointing.stores.contract import Conflict, Store, StoreError
from checkpointing.stores.transfers import within
from reporting.recording.attempts import Incident, RecordedAttempt
from reporting.recording.recorder import incident_part

_TIMEOUT_S = 15.0
_END_TIMEOUT_S = 10.0
# A few KB each. An outage of six hours has some dozens of attempts, each with two incidents.
_MOST_UNSENT = 1000
_log = logging.getLogger(__name__)


class IncidentOutbox:
    """One driver's incident outbox, for all of its threads. Used as a context; its end tries once more.

    Raises nothing. When the outbox is full, the oldest incidents are dropped.
    """

    def __init__(
        self, store: Store, *, timeout_s: float = _TIMEOUT_S, most_unsent: int = _MOST_UNSENT
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._most_unsent = most_unsent
        self._unsent: dict[str, bytes] = {}
        self._sending = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unsent:
            with suppress(TimeoutError):
                within(min(self._timeout_s, _END_TIMEOUT_S), self._send_the_last)

    def leave(self, attempt: RecordedAttempt, one: Incident, *, now_s: float) -> None:
        """Sends an incident, after those that are still waiting."""
        name, data = incident_part(attempt, one, now_s=now_s)
        self._unsent[name] = data
        if len(self._unsent) > self._most_unsent:
            self._unsent.pop(next(iter(self._unsent)), None)
        with suppress(TimeoutError):
            within(self._timeout_s, self._send)

    def _send(self) -> None:
        """If another thread is sending, leave it to that thread; it rechecks the queue before it stops."""
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                for name, data in list(self._unsent.items()):
                    # Names are unique, so a conflict means that this incident was stored and the answer
                    # got lost.
                    with suppress(Conflict):
                        self._store.create(name, data)
                    self._unsent.pop(name, None)
            except StoreError as error:
                _log.warning("incidents have to wait: %s", error)
                return
            finally:
                self._sending.release()

    def _send_the_last(self) -> None:
        # The process ends soon after, so wait for a thread that is still sending.
        with self._sending:
            pass
        self._send()
