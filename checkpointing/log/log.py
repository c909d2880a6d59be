"""The commit log: numbered records, each created once, never rewritten, never deleted.

Creating the next number is the commit and is the fence. A new attempt's ``Lease`` takes the number that the
attempt before would have used next, so a writer that was thought dead finds its number taken, reads on,
sees the higher term and gets ``Fenced``. No clock is involved: ``written_s`` is for people only.

A record carries the id that its writer drew for it. So whatever a store answered, the number's record says
whether it is the writer's own or another's. A number that was refused as taken and is not there is neither:
it is asked for again until the deadline, and nothing is told durable, and no number passed over, before it is
decided. Such a record is never taken for a damaged one.

A term is never given twice, whatever was lost: the hint tells the newest record and its term, so that a log
whose newest records are gone is noticed.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from checkpointing.errors import Corrupt, Fenced
from checkpointing.log.codec import LogRecord, decode, encode
from checkpointing.log.history import Entry, Lease, LogView, after
from checkpointing.stores.contract import Buffer, Missing, Store, StoreError, Undecided, check_name
from checkpointing.stores.retrying import Waiter, create_once

_RECORD = re.compile(r"([0-9]{12})\.json")
# Others append too, but rarely: so many lost races in a row mean that something is broken.
_MOST_RACES = 1000
_MOST_RECORDS = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The newest record that somebody wrote, and the term after it; 0 where that is not told."""

    number: int = 0
    term: int = 0


class Log:
    """A run's log in ``store``. Used by one thread at a time; any number of processes may append.

    What it read last stays in memory: appending to an undisturbed log is one request, and one more for the
    hint, which only makes the next reader's search short.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        waiter: Waiter | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._folder = log_folder(run)
        self._clock = clock
        self._new_id = new_id
        self._waiter = waiter or Waiter()
        self._number = 0
        self._view = LogView()
        self._num_gone = 0
        self._newest_term = 0

    @property
    def view(self) -> LogView:
        """After the newest record that was read or written; empty before."""
        return self._view

    @property
    def number(self) -> int:
        """Of that record; 0 before there is any."""
        return self._number

    @property
    def num_gone(self) -> int:
        """How many records the hint told of when it was last read, behind the newest one that there was."""
        return self._num_gone

    def read(self) -> LogView:
        """The newest view: at most 4 requests however long the log is, if the hint is about right."""
        hint = read_hint(self._store, self._run)
        newest = hint.number
        after_hint = f"{self._slot(newest)}" if newest else ""
        names = list(self._store.list(self._folder, after=after_hint))
        if not names and newest:
            # The hint is the newest, or it is wrong.
            names = [self._slot(newest)] if self._exists(newest) else list(self._store.list(self._folder))
        if numbers := sorted(numbers_in(names)):
            self._go_to(numbers[-1])
        self._num_gone = max(0, newest - self._number)
        # Each record that is gone may have been a lease.
        self._newest_term = hint.term or self._view.term + self._num_gone
        return self._view

    def append(self, entry: Entry, *, term: int | None = None) -> LogView:
        """Folds ``entry`` in. With ``term``, only as long as no later attempt began: else ``Fenced``.

        After ``Unavailable`` it may have landed or not; appending it again is right either way.
        """
        return self.decide(lambda view: entry, term=term)

    def decide(self, decide: Callable[[LogView], Entry | None], *, term: int | None = None) -> LogView:
        """As ``append``, of what ``decide`` makes of the newest view; None appends nothing.

        Asked again after each lost race, so the entry follows from exactly the view that it is folded into.
        """
        for _ in range(_MOST_RACES):
            if term is not None and self._view.term != term:
                raise Fenced(f"term {term} is over: {self._view.owner} took the run over")
            entry = decide(self._view)
            if entry is None:
                return self._view
            record = self._next(entry)
            data = encode(record)
            if (winner := self._create(record.number, data)) != data:
                self._step_forward(bytes(winner))
                continue
            self._number, self._view = record.number, record.view
            self._leave_hint()
            return self._view
        raise StoreError(f"log: {self._folder}: {_MOST_RACES} numbers in a row were taken by others")

    def lease(self, owner: str, *, above: int = 0) -> int:
        """Begins a new attempt; its term, which is above ``above`` and all that the hint told of."""
        self.read()
        above = max(above, self._newest_term)
        return self.decide(
            lambda view: Lease(owner=owner, term=above + 1 if above > view.term else None)
        ).term

    def lineage(self) -> str:
        """What tells this log from every other one of the same name: the id of its first record."""
        try:
            return self._get(1).id
        except Corrupt:
            return "damaged"

    def records(self) -> list[LogRecord]:
        """Everything that ever happened, but for records that are damaged; for people and tools."""
        found = []
        for number in sorted(numbers_in(self._store.list(self._folder))):
            with suppress(Corrupt):
                found.append(self._get(number))
        return found

    def _next(self, entry: Entry) -> LogRecord:
        return LogRecord(
            number=self._number + 1,
            id=self._new_id(),
            written_s=self._clock(),
            entry=entry,
            view=after(self._view, entry),
        )

    def _create(self, number: int, data: bytes) -> Buffer:
        """What the slot holds then: ``data``, or another's that was first."""
        slot = self._slot(number)
        return self._waiter.wait_out(lambda: create_once(self._store, slot, data), Undecided)

    def _step_forward(self, data: bytes | None = None) -> None:
        """To the next record, of ``data`` where that was read; a damaged one counts as an attempt's start."""
        number = self._number + 1
        try:
            record = self._get(number) if data is None else decode(data, number)
        except Corrupt:
            record = self._unreadable(number)
        self._number, self._view = number, record.view

    def _go_to(self, number: int) -> None:
        """Makes ``number`` the newest that is known, reading back to a whole record if it is damaged."""
        if number <= self._number:
            return
        first = number
        while first > self._number + 1:
            try:
                record = self._get(first)
            except Corrupt:
                first -= 1
                continue
            self._number, self._view = first, record.view
            break
        while self._number < number:
            self._step_forward()

    def _unreadable(self, number: int) -> LogRecord:
        """It may have been a lease, and a term must never be given twice."""
        entry = Lease(owner="unknown: its record is damaged")
        view = replace(after(self._view, entry), num_lost=self._view.num_lost + 1)
        return LogRecord(number=number, id="", written_s=0.0, entry=entry, view=view)

    def _get(self, number: int) -> LogRecord:
        try:
            return decode(self._store.get(self._slot(number)), number)
        except Missing as error:
            raise Corrupt(f"record {number} of the log is gone") from error

    def _slot(self, number: int) -> str:
        return slot_name(self._run, number)

    def _exists(self, number: int) -> bool:
        try:
            return self._store.get_range(self._slot(number), 0, memoryview(bytearray(1))) == 1
        except Missing:
            return False

    def _leave_hint(self) -> None:
        with suppress(StoreError):
            leave_hint(self._store, self._run, Hint(number=self._number, term=self._view.term))


def log_folder(run: str) -> str:
    return check_name(f"runs/{run}/log")


def slot_name(run: str, number: int) -> str:
    return f"{log_folder(run)}/{number:012d}.json"


def numbers_in(names: Iterable[str]) -> list[int]:
    """Of those names that are records'."""
    found = (_RECORD.fullmatch(name.rpartition("/")[2]) for name in names)
    return [int(one[1]) for one in found if one]


def read_hint(store: Store, run: str) -> Hint:
    """The record that it names need not be there. Hints of older versions tell no term."""
    try:
        body = json.loads(store.get(_hint_name(run)))
        number, term = body["number"], body.get("term", 0)
    except (Missing, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Hint()
    if not isinstance(number, int) or not 0 < number < _MOST_RECORDS:
        return Hint()
    is_term = isinstance(term, int) and 0 < term < _MOST_RECORDS
    return Hint(number=number, term=term if is_term else 0)


def leave_hint(store: Store, run: str, hint: Hint) -> None:
    store.put(_hint_name(run), json.dumps({"number": hint.number, "term": hint.term}).encode())


def _hint_name(run: str) -> str:
    return check_name(f"runs/{run}/hint.json")
