"""The commit log: numbered records that are created once and never rewritten or deleted.

Creating the next number is both the commit and the fence. The ``Lease`` of a new attempt takes the number
that the attempt before would have used next. A writer that was thought dead finds its number taken, reads
on, sees the higher term and gets ``Fenced``. No clock is involved: ``written_s`` is for people only.

Each record carries an id that its writer drew. Whatever a store answered, the record under a number
therefore shows whether it is the writer's own. A number may also be refused as taken while no record is
there. The writer then asks again until the deadline. Until that is decided, nothing is reported durable and
no number is skipped. Such a record is never taken for a damaged one.

With the store's key records are signed, and what is not counts as damaged, see ``trust``: a writer of the
store without the key can end attempts, but commit nothing. Whoever has no key may read such a log, but not
append to it.

A term is never given twice, even after records were lost. The hint names the newest record and its term, so
a log that lost its newest records is noticed.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from checkpointing.errors import Corrupt, Fenced
from checkpointing.log.codec import MOST_TERM, LogRecord, encode, excess_in
from checkpointing.log.history import Commit, Entry, Fresh, Lease, LogView, after
from checkpointing.log.signing import Signer, store_key
from checkpointing.log.trust import MOST_RECORD_BYTES, Trust, log_folder, slot_name
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Buffer, Missing, NotAFile, Store, StoreError, Undecided, check_name
from checkpointing.stores.retrying import Waiter, create_once

_RECORD = re.compile(r"([0-9]{12})\.json")
# Other writers append rarely: this many lost races in a row mean that something is broken.
_MOST_RACES = 1000
_MOST_HINT_BYTES = 4096
_MOST_SMALL_BYTES = 2**20
# Anybody may plant a wrong hint, or junk under a far number. Neither must use the numbers up.
_MOST_SKIPPED = 10**6
MOST_RECORDS = 10**12


class LogFull(StoreError):
    """So many generations are kept that a record with one more is larger than what readers take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The newest record that a writer noted, and the term at that record; 0 where it is not known."""

    number: int = 0
    term: int = 0


class Log:
    """A run's log in ``store``. One thread at a time may use it; any number of processes may append.

    The last view stays in memory. Appending to an undisturbed log takes one request, plus one for the hint,
    which shortens the next reader's search. A save, which appends three records, leaves it once.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        clock: Callable[[], float] = time.time,
        waiter: Waiter | None = None,
        signer: Signer | None = None,
    ) -> None:
        """``signer`` has the store's key by default. Raises ``StoreKeyError`` if it can't be used."""
        self._store = store
        self._run = run
        self._folder = log_folder(run)
        self._clock = clock
        self._waiter = waiter or Waiter()
        self._number = 0
        self._view = LogView()
        self._num_gone = 0
        self._newest_term = 0
        self._is_hint_due = False
        self._trust = Trust(store, run, signer or Signer(run, store_key()))

    @property
    def view(self) -> LogView:
        """The view after the newest record that was read or written; empty before."""
        return self._view

    @property
    def number(self) -> int:
        """The number of the newest record that was read or written; 0 before there is any."""
        return self._number

    @property
    def num_gone(self) -> int:
        """How many records after the newest existing one the hint named when it was last read."""
        return self._num_gone

    def read(self) -> LogView:
        """Returns the newest view: in 3 requests, however long the log is, if the hint is nearly right."""
        hint = read_hint(self._store, self._run)
        newest = hint.number
        before_hint = self._slot(newest - 1) if newest else ""
        numbers = self._numbers_ahead(after=before_hint)
        if not self._go_to_newest_whole(numbers) and newest and self._is_gap_before(numbers):
            numbers = self._numbers_ahead()
            self._go_to_newest_whole(numbers)
        self._step_over(numbers)
        self._trust.refuse_another_key()
        self._num_gone = max(0, newest - self._number)
        # Each lost record may have been a lease.
        most = min(self._view.term + min(self._num_gone, _MOST_SKIPPED), MOST_TERM)
        self._newest_term = hint.term or most
        return self._view

    def append(self, entry: Entry, *, term: int | None = None, hint_later: bool = False) -> LogView:
        """Folds ``entry`` in. With ``term``, raises ``Fenced`` if a later attempt has begun.

        After ``Unavailable`` the entry may have landed or not; appending it again is right either way.
        ``hint_later`` is for who soon calls this or ``decide`` again: the next call's hint is for both.
        """
        return self.decide(lambda view: entry, term=term, hint_later=hint_later)

    def decide(
        self,
        decide: Callable[[LogView], Entry | None],
        *,
        term: int | None = None,
        hint_later: bool = False,
    ) -> LogView:
        """Appends the entry that ``decide`` makes of the newest view; None appends nothing.

        ``decide`` is called again after each lost race, so the entry follows from exactly the view that it
        is folded into.
        """
        for _ in range(_MOST_RACES):
            if term is not None and self._view.term != term:
                raise Fenced(f"term {term} is over: {self._view.owner} took the run over")
            entry = decide(self._view)
            if entry is None:
                if self._is_hint_due and not hint_later:
                    self._leave_hint()
                return self._view
            self._trust.refuse_to_append_unsigned()
            record = self._next(entry)
            data = self._trust.sign(record.number, entry, encode(record))
            self._refuse_too_large(entry, data)
            if (winner := self._create(record.number, data)) != data:
                self._step_forward(bytes(winner or b""))
                continue
            self._number, self._view = record.number, record.view
            self._trust.note_own(record, data)
            self._is_hint_due = True
            if not hint_later:
                self._leave_hint()
            return self._view
        raise StoreError(f"log: {self._folder}: {_MOST_RACES} numbers in a row were taken by others")

    def lease(
        self,
        owner: str,
        *,
        above: int = 0,
        is_past_gone: bool = False,
        takes_unsigned: bool = False,
        fresh: bool = False,
    ) -> int:
        """Begins a new attempt and returns its term, which is higher than ``above`` and than the hint's
        term.

        With the store's key, the lease signs the log. Raises ``StoreKeyError`` if it has records and the key
        signed none of them, unless ``takes_unsigned``, or ``fresh`` begins a life in which they don't count.
        """
        self.read()
        if is_past_gone and self._num_gone <= _MOST_SKIPPED:
            # Whoever wrote the records that are gone appends behind them, and so must find this lease there.
            self._number += self._num_gone
        above = max(above, self._newest_term)

        lives: list[int] = []

        def begin(view: LogView) -> Lease:
            # Asked again after each lost race: the record that won may be the first of a planted log.
            number = self._number + 1
            if not takes_unsigned and not fresh:
                self._trust.refuse_what_nobody_signed(before=number)
            lives.append(view.life)
            signs_others = fresh and number > 1 and self._trust.begins_to_sign(before=number)
            return Lease(owner=owner, term=above + 1 if above > view.term else None, is_fresh=signs_others)

        term = self.decide(begin).term
        if fresh and self._number > 1 and self._view.life == lives[-1]:
            self.append(Fresh(), term=term)
        return term

    def is_anybodys(self) -> bool:
        """Says whether there is a key, and it signed nothing of the log as it was read last."""
        return self._trust.is_anybodys(before=self._number + 1)

    def is_signed(self) -> bool:
        """Says whether the log, as it was read last, is signed with the key of this process."""
        return self._trust.is_signed_with_our_key(before=self._number + 1)

    def begun_by(self) -> str | None:
        """Returns who began the log; None unless its first record is a lease, with the key a signed one.

        Where a hint outlived the log, what follows begins behind the records that it names.
        """
        first = min(numbers_in(self._store.list(self._folder)), default=1)
        with suppress(Corrupt, Missing, TooLarge):
            entry = self._get(first).entry
            if isinstance(entry, Lease) and not self._trust.may_be_anybodys(first):
                return entry.owner
        return None

    def log_id(self) -> str | None:
        """See ``Trust.log_id``."""
        return self._trust.log_id()

    def lineage(self) -> str:
        """Returns the id of the first record, which distinguishes this log from any other log of the same
        name.
        """
        try:
            return self._get(1).id
        except Corrupt:
            return "damaged"

    def record(self, number: int) -> LogRecord:
        """Returns record ``number``; raises ``Corrupt`` if it is missing, damaged or not to be believed."""
        return self._get(number)

    def small_record(self, number: int) -> LogRecord | None:
        """Returns what ``record`` does; None if it has more than 1 MiB, which is not read then."""
        with suppress(TooLarge):
            return self._believed(number, most_bytes=_MOST_SMALL_BYTES)
        return None

    def records(self) -> Iterator[LogRecord]:
        """Yields all records except damaged ones, each with a view of its own; for people and tools."""
        for number in sorted(numbers_in(self._store.list(self._folder))):
            with suppress(Corrupt):
                yield self._get(number)

    def _next(self, entry: Entry) -> LogRecord:
        number, record_id = self._number + 1, secrets.token_hex(8)
        return LogRecord(
            number=number,
            id=record_id,
            written_s=self._clock(),
            entry=entry,
            view=after(self._view, entry),
            log=self._trust.id_to_write(number, record_id),
        )

    def _refuse_too_large(self, entry: Entry, data: bytes) -> None:
        """What a reader takes for damage is not written: all later records would be as large.

        A commit leaves room for leases, and for what makes the records smaller again.
        """
        excess = excess_in(data)
        most = MOST_RECORD_BYTES - (MOST_RECORD_BYTES // 64 if isinstance(entry, Commit) else 0)
        if len(data) > most:
            excess = f"{len(data):,} bytes, of which at most {most:,} are written"
        if excess:
            raise LogFull(
                f"log: {self._folder}: the next record would have {excess}; let fewer saves stay: start the "
                "run again with a smaller checkpoint.retention, or unpin some (longhaul checkpoints unpin), "
                "and the next save makes room"
            )

    def _create(self, number: int, data: bytes) -> Buffer | None:
        """Returns what the slot holds afterwards: ``data``, or the record of a writer that was first."""
        slot = self._slot(number)
        return self._waiter.wait_out(
            lambda: create_once(self._store, slot, data, most_bytes=MOST_RECORD_BYTES), Undecided
        )

    def _step_forward(self, data: bytes) -> None:
        """Moves to the next record, whose bytes are given. A damaged record counts as a lease."""
        number = self._number + 1
        try:
            record = self._trust.believed(data, number)
        except Corrupt:
            record = self._unreadable(number)
        self._number, self._view = number, record.view

    def _numbers_ahead(self, after: str = "") -> list[int]:
        found = numbers_in(self._store.list(self._folder, after=after))
        return sorted(number for number in found if number > self._number)

    def _go_to_newest_whole(self, numbers: Sequence[int]) -> bool:
        for number in reversed(numbers):
            with suppress(Corrupt):
                self._number, self._view = number, self._get(number).view
                return True
        return False

    def _is_gap_before(self, numbers: Sequence[int]) -> bool:
        """Whether there may be whole records between the newest known one and the listed ones."""
        return not numbers or numbers[0] > self._number + 1

    def _step_over(self, numbers: Sequence[int]) -> None:
        """Goes on to the last of these records, which are damaged."""
        for number in numbers:
            if number > self._number + _MOST_SKIPPED:
                return
            if number > self._number:
                self._number, self._view = number, self._unreadable(number).view

    def _unreadable(self, number: int) -> LogRecord:
        """Counts damaged records, up to this one, as leases: each may have been one, and no term may be given
        twice.
        """
        count = number - self._number
        entry = Lease(owner="unknown: its record is damaged")
        term, num_lost = self._view.term + count, self._view.num_lost + count
        view = replace(after(self._view, entry), term=term, num_lost=num_lost)
        return LogRecord(number=number, id="", written_s=0.0, entry=entry, view=view)

    def _get(self, number: int) -> LogRecord:
        try:
            return self._believed(number, most_bytes=MOST_RECORD_BYTES)
        except TooLarge as error:
            raise Corrupt(f"record {number} of the log {error}") from error

    def _believed(self, number: int, *, most_bytes: int) -> LogRecord:
        try:
            data = get_bounded(self._store, self._slot(number), most_bytes=most_bytes)
        except Missing as error:
            raise Corrupt(f"record {number} of the log is gone") from error
        return self._trust.believed(data, number)

    def _slot(self, number: int) -> str:
        return slot_name(self._run, number)

    def _leave_hint(self) -> None:
        self._is_hint_due = False
        with suppress(StoreError):
            # Where the newest records are lost, the hint alone may tell of the terms that they gave.
            term = max(self._view.term, self._newest_term)
            leave_hint(self._store, self._run, Hint(number=self._number, term=term))


def numbers_in(names: Iterable[str]) -> list[int]:
    """Returns the numbers of those names that are records."""
    found = (_RECORD.fullmatch(name.rpartition("/")[2]) for name in names)
    return [int(one[1]) for one in found if one]


def read_hint(store: Store, run: str) -> Hint:
    """Reads the hint. The record that it names may not exist. Hints of older versions hold no term.

    A link or a pipe in its place, in a store that is a folder, counts as none: the log is listed then.
    """
    try:
        body = json.loads(get_bounded(store, _hint_name(run), most_bytes=_MOST_HINT_BYTES))
        number, term = body["number"], body.get("term", 0)
    except (Missing, NotAFile, TooLarge, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Hint()
    if not isinstance(number, int) or not 0 < number < MOST_RECORDS:
        return Hint()
    is_term = isinstance(term, int) and 0 < term < MOST_TERM
    return Hint(number=number, term=term if is_term else 0)


def leave_hint(store: Store, run: str, hint: Hint) -> None:
    store.put(_hint_name(run), json.dumps({"number": hint.number, "term": hint.term}).encode())


def _hint_name(run: str) -> str:
    return check_name(f"runs/{run}/hint.json")
