"""The outbox holds rows on their way to the store: bounded while the store is unavailable, merged once
stored.

Only one thread may use it. A part's rows leave memory when a merged part holds them, or when there is no
room.
"""

import logging
from collections import deque
from contextlib import suppress

from checkpointing.stores.contract import Conflict, Store, StoreError
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.parts import PartName, Rows, encode_part, joined

# Parts merged into one. Without merging, a day of flushes every ten seconds would be tens of thousands of
# objects.
_MERGED_AT = 60
_MOST_BYTES = 64_000_000
_log = logging.getLogger(__name__)


class Outbox:
    """Sends one rank's rows. Another writer for the same attempt and rank must use other numbers."""

    def __init__(
        self,
        store: Store,
        rank: int,
        *,
        merged_at: int = _MERGED_AT,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.num_dropped_rows = 0
        self._store = store
        self._rank = rank
        self._merged_at = merged_at
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[PartName, bytes, Rows]] = deque()
        self._number = 0
        self._stored: dict[str, list[tuple[PartName, Rows]]] = {}
        self._replaced: dict[str, list[PartName]] = {}

    def add(self, table: str, attempt: RecordedAttempt, rows: Rows) -> None:
        """Queues rows as one part. If there is no room the oldest parts are dropped; ``num_dropped_rows``
        counts their rows.
        """
        self._number += 1
        name = self._name(table, attempt, self._number, self._number)
        self._waiting.append((name, encode_part(table, attempt, rows), rows))
        while len(self._waiting) > 1 and sum(len(data) for _, data, _ in self._waiting) > self._most_bytes:
            self.num_dropped_rows += self._waiting.popleft()[2].num_rows

    def send(self, attempt: RecordedAttempt) -> bool:
        """Sends all that waits, and returns whether everything is in the store now. A store error is logged,
        not raised; the next call tries again.
        """
        try:
            while self._waiting:
                name, data, rows = self._waiting[0]
                self._create(name, data)
                self._waiting.popleft()
                self._stored.setdefault(name.table, []).append((name, rows))
            for table, stored in self._stored.items():
                if len(stored) >= self._merged_at:
                    self._merge(table, attempt)
        except StoreError as error:
            _log.warning("records have to wait: %s", error)
            return False
        return True

    def _merge(self, table: str, attempt: RecordedAttempt) -> None:
        """Merges the table's parts into one. Parts that the previous merge replaced are deleted only now,
        because readers may still have been using them.
        """
        names = [name for name, _ in self._stored[table]]
        rows = joined([rows for _, rows in self._stored[table]])
        self._create(
            self._name(table, attempt, names[0].first, names[-1].last), encode_part(table, attempt, rows)
        )
        self._stored[table] = []
        unused, self._replaced[table] = self._replaced.get(table, []), names
        for name in unused:
            with suppress(StoreError):
                self._store.delete(str(name))

    def _create(self, name: PartName, data: bytes) -> None:
        # Nobody else uses this name, so a conflict means that an earlier try succeeded and its answer was
        # lost.
        with suppress(Conflict):
            self._store.create(str(name), data)

    def _name(self, table: str, attempt: RecordedAttempt, first: int, last: int) -> PartName:
        return PartName(
            run=attempt.run, table=table, term=attempt.term, rank=self._rank, first=first, last=last
        )
