"""The outbox holds rows on their way to the store: bounded while the store is unavailable, merged once
stored.

Only one thread may use it. A part's rows leave memory when a merged part holds them, or when there is no
room.
"""

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from checkpointing.stores.contract import Conflict, Store, StoreError
from reporting.recording.attempts import RecordedAttempt
from reporting.recording.parts import PartName, Rows, encode_part, joined

# Parts merged into one. Without merging, a day of flushes every ten seconds would be tens of thousands of
# objects.
_MERGED_AT = 60
_MOST_BYTES = 64_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    name: PartName
    rows: Rows


class Outbox:
    """Sends one rank's rows. ``first`` is the number of its first part; another writer for the same attempt
    and rank must use other numbers.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        *,
        first: int = 1,
        merged_at: int = _MERGED_AT,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.num_dropped_rows = 0
        self._store = store
        self._rank = rank
        self._merged_at = merged_at
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[PartName, bytes, Rows]] = deque()
        self._number = first - 1
        self._landed: dict[str, list[_Sent]] = {}
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
                self._landed.setdefault(name.table, []).append(_Sent(name=name, rows=rows))
            for table, sent in self._landed.items():
                if len(sent) >= self._merged_at:
                    self._merge(table, attempt)
        except StoreError as error:
            _log.warning("records have to wait: %s", error)
            return False
        return True

    def _merge(self, table: str, attempt: RecordedAttempt) -> None:
        """Merges the table's parts into one. Parts that the previous merge replaced are deleted only now,
        because readers may still have been using them.
        """
        sent = self._landed[table]
        rows = joined([one.rows for one in sent])
        name = self._name(table, attempt, sent[0].name.first, sent[-1].name.last)
        self._create(name, encode_part(table, attempt, rows))
        self._landed[table] = []
        gone = self._replaced.get(table, [])
        self._replaced[table] = [one.name for one in sent]
        for old in gone:
            with suppress(StoreError):
                self._store.delete(str(old))

    def _create(self, name: PartName, data: bytes) -> None:
        # Nobody else uses this name, so a conflict means that an earlier try succeeded and its answer was
        # lost.
        with suppress(Conflict):
            self._store.create(str(name), data)

    def _name(self, table: str, attempt: RecordedAttempt, first: int, last: int) -> PartName:
        return PartName(
            run=attempt.run, table=table, term=attempt.term, rank=self._rank, first=first, last=last
        )
