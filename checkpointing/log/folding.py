"""Folds what a log has given up into one object, so that nobody has to read the whole log for it.

A record's view tells what is kept, not what was given up before. ``Fold`` is what the records up to a number
gave up. The run's driver writes it anew every ``EVERY`` records; a reader takes it and reads only the records
behind it. It is a shortcut and no truth of its own: one that is missing, damaged, of another log, or not
signed as the log is, is ignored, and then the records are read.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from checkpointing.errors import Corrupt
from checkpointing.log.codec import is_count, is_generation_name, seal, unseal
from checkpointing.log.history import Tombstone
from checkpointing.log.log import MOST_RECORDS, Log, numbers_in
from checkpointing.log.signing import Signer
from checkpointing.log.trust import log_folder, slot_name
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Denied, Missing, Store, StoreError, check_name

EVERY = 64
# What one save may read for the fold of a log that has none yet, and the most records that a fold lacks.
_MOST_AT_ONCE = 1024
_MOST_UNREAD = 1000
# Two million names: a save each minute for four years.
_MOST_FOLD_BYTES = 64 * 2**20
_FIELDS = ("number", "id", "names", "unread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The ``names`` that records up to ``number`` gave up. ``id`` is that record's own.

    ``unread`` are earlier records that could not be read. They may come back, so they are tried each time.
    """

    number: int = 0
    id: str = ""
    names: frozenset[str] = frozenset()
    unread: tuple[int, ...] = ()


def encode_fold(fold: Fold, run: str) -> bytes:
    return seal(
        {
            "run": run,
            "number": fold.number,
            "id": fold.id,
            "names": sorted(fold.names),
            "unread": fold.unread,
        }
    )


def decode_fold(data: bytes, run: str) -> Fold:
    """Returns the fold of this run; raises ``Corrupt`` if ``data`` is none."""
    body: dict[str, Any] = {**dict.fromkeys(_FIELDS), **unseal(data)}
    number, record_id, names, unread = (body[name] for name in _FIELDS)
    is_whole = (
        body.get("run") == run
        and is_count(number)
        and number < MOST_RECORDS
        and isinstance(record_id, str)
        and (isinstance(names, list) and all(map(is_generation_name, names)))
        and (isinstance(unread, list) and len(unread) <= _MOST_UNREAD and all(map(is_count, unread)))
        and all(one < number for one in unread)
    )
    if not is_whole:
        raise Corrupt("is no fold of this run's log")
    return Fold(number=number, id=record_id, names=frozenset(names), unread=tuple(unread))


class GivenUpNames:
    """The names that a log gave up, up to the newest record that ``log`` knows. Several threads may ask."""

    def __init__(self, store: Store, run: str, log: Log, signer: Signer) -> None:
        self._store = store
        self._run = run
        self._log = log
        self._signer = signer
        self._lock = Lock()
        self._fold: Fold | None = None
        self._is_foldable = True
        self._due_at = EVERY

    def read(self) -> set[str]:
        """Reads the fold and the records behind it. The next call reads only what came since."""
        with self._lock:
            return set(self._read_to(self._log.number).names)

    def leave(self) -> None:
        """Writes the fold where it is due. It never waits for a reader, and what the store refuses costs
        nothing but the shortcut.
        """
        if self._log.number < self._due_at or not self._is_foldable or not self._lock.acquire(blocking=False):
            return
        try:
            self._due_at = self._log.number + EVERY
            with suppress(StoreError):
                self._write()
        finally:
            self._lock.release()

    def _write(self) -> None:
        told = self._fold or self._stored()
        fold = self._read_to(min(self._log.number, told.number + _MOST_AT_ONCE))
        if self._is_foldable and fold.number > told.number:
            data = encode_fold(fold, self._run)
            self._store.put(fold_name(self._run), self._signer.sign_fold(fold.number, data))
            self._due_at = fold.number + EVERY

    def _read_to(self, end: int) -> Fold:
        """Adds the records up to ``end``. A log that lacks too many of them is read as a whole each time."""
        fold = self._fold or self._stored()
        fold = self._add(fold, self._numbers(fold.number, end))
        self._is_foldable = len(fold.unread) <= _MOST_UNREAD
        self._fold = fold if self._is_foldable else None
        return fold

    def _add(self, fold: Fold, numbers: Sequence[int]) -> Fold:
        names, unread = set(fold.names), set()
        newest, newest_id = fold.number, fold.id
        for number in (*fold.unread, *numbers):
            try:
                record = self._log.record(number)
            except Corrupt:
                unread.add(number)
                continue
            if isinstance(record.entry, Tombstone):
                names.update(record.entry.names)
            if number > newest:
                newest, newest_id = number, record.id
        unread |= set(range(fold.number + 1, newest)).difference(numbers)
        # Unread records behind the newest whole one are not folded, so the next call tries them anyway.
        left = tuple(sorted(number for number in unread if number < newest))
        return Fold(number=newest, id=newest_id, names=frozenset(names), unread=left)

    def _numbers(self, start: int, end: int) -> Sequence[int]:
        """Returns the records after ``start`` up to ``end``. A long log may lack many: it is listed."""
        if end - start <= _MOST_AT_ONCE:
            return range(start + 1, end + 1)
        listed = self._store.list(log_folder(self._run), after=slot_name(self._run, start))
        return sorted(number for number in numbers_in(listed) if start < number <= end)

    def _stored(self) -> Fold:
        """Returns the fold in the store, if it is one of exactly this log; else an empty one.

        It may have been written since the log was looked at.
        """

        if self._log.number < EVERY:
            return Fold()
        # Where a link or a pipe lies in a store that is a folder, ``Denied`` names it.
        with suppress(Corrupt, Missing, TooLarge, Denied):
            data = get_bounded(self._store, fold_name(self._run), most_bytes=_MOST_FOLD_BYTES)
            fold = decode_fold(data, self._run)
            is_believed = self._signer.is_fold_signed(fold.number, data) or not self._log.is_signed()
            if is_believed and self._is_of_this_log(fold):
                return fold
        return Fold()

    def _is_of_this_log(self, fold: Fold) -> bool:
        return self._log.record(fold.number).id == fold.id


def fold_name(run: str) -> str:
    return check_name(f"runs/{run}/given_up.json")
