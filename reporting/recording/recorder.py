"""Records what a worker does without holding it up: the training appends, a thread of its own writes.

Appending is a few microseconds and never raises. A crash loses what was appended since the last flush, at
most ``flush_s`` ago; a store that is away costs nothing until the outbox is full, and then the oldest rows.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any, get_args

from reporting.recording.attempts import DRIVER, DeviceSample, Incident, IncidentKind, RecordedAttempt, Step
from reporting.recording.outbox import Outbox
from reporting.recording.parts import PartName, encode_part, rows_in, table_of
from reporting.recording.scalars import RecordedWindow

_LOOK_EVERY_S = 1.0
_RETRY_EVERY_S = 0.5
# Of rows in memory between two flushes; a thousand steps a second fill it in a minute and a half.
_MOST_ROWS = 100_000
_log = logging.getLogger(__name__)


Sink = Callable[[RecordedWindow], None]
# Looks at this rank's device, from the recorder's thread.
Look = Callable[[], DeviceSample]


class Recorder:
    """One rank's. ``phase`` and ``step`` are the training thread's to call, ``incident`` anybody's."""

    def __init__(
        self,
        attempt: RecordedAttempt,
        rank: int,
        outbox: Outbox,
        *,
        flush_s: float,
        sinks: Sequence[Sink] = (),
        look: Look | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._attempt = attempt
        self._rank = rank
        self._outbox = outbox
        self._flush_s = flush_s
        self._sinks = sinks
        self._look = look
        self._ticks = ticks
        # One reading of the clock: times within an attempt never go backwards.
        self._offset = clock() - ticks()
        self._steps: deque[tuple[Any, ...]] = deque()
        self._samples: deque[tuple[Any, ...]] = deque()
        self._incidents: deque[tuple[Any, ...]] = deque()
        self._marks: deque[tuple[str, float, float]] = deque()
        self._current = ("start", self._now())
        self._told_until = self._current[1]
        self._spent: dict[str, float] = {}
        self._num_dropped = 0
        self._num_told_dropped = 0
        self._memory_bytes: int | None = None
        self._failed_sinks: set[int] = set()
        self._close_by = 0.0
        self._done = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin_at(self, step: int, parent_term: int | None = None) -> None:
        """See ``RecordedAttempt``. Written soon, so that a crash doesn't hide what became of the steps
        before it.
        """
        self._attempt = replace(self._attempt, start_step=step, parent_term=parent_term)
        self._wake.set()

    def phase(self, name: str) -> None:
        """From here on the time is ``name``'s, see ``ledger.PHASES``. The run's ledger is rank 0's."""
        now = self._now()
        phase, since = self._current
        self._spent[phase] = self._spent.get(phase, 0.0) + now - since
        if self._rank == 0:
            self._append(self._marks, (phase, since, now))
        self._current = (name, now)

    def step(self, done: Step) -> None:
        """Its time is what was spent on ``productive`` since the last one. Then the next waits for data."""
        self.phase("data wait")
        spent, self._spent = self._spent, {}
        seconds = (spent.get("productive", 0.0), spent.get("data wait", 0.0))
        row = (
            done.step, done.position, done.epoch, self._current[1], *seconds, done.tokens, done.loss,
            done.grad_norm, done.learning_rate, self._memory_bytes, done.val_loss,
        )  # fmt: skip
        self._append(self._steps, row)

    def incident(self, one: Incident) -> None:
        self._append(self._incidents, _incident_row(one, self._now()))

    def close(self, timeout_s: float) -> None:
        """Writes what is left; gives up after ``timeout_s``."""
        self.phase("idle")
        self._close_by = self._ticks() + timeout_s
        self._done.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _append(self, rows: deque[Any], row: Any) -> None:
        if len(rows) < _MOST_ROWS:
            rows.append(row)
        else:
            self._num_dropped += 1

    def _now(self) -> float:
        return self._ticks() + self._offset

    def _work(self) -> None:
        next_flush = self._ticks() + self._flush_s
        while not self._done.is_set():
            left = max(0.0, next_flush - self._ticks())
            is_woken = self._wake.wait(min(left, _LOOK_EVERY_S) if self._look else left)
            self._wake.clear()
            self._sample()
            if is_woken or self._ticks() >= next_flush:
                self._flush()
                next_flush = self._ticks() + self._flush_s
        is_sent = self._flush(is_last=True)
        while not is_sent and self._ticks() < self._close_by:
            time.sleep(_RETRY_EVERY_S)
            is_sent = self._outbox.send(self._attempt)

    def _sample(self) -> None:
        if self._look is None:
            return
        try:
            sample = self._look()
        except Exception as error:
            self.incident(Incident(kind="warning", text=f"the device can't be looked at: {error}"))
            self._look = None
            return
        self._memory_bytes = sample.memory_bytes
        device, *told = astuple(sample)
        self._append(self._samples, (device, self._now(), *told))

    def _flush(self, *, is_last: bool = False) -> bool:
        """Whether all is in the store. What nobody thought of is logged: the training goes on."""
        try:
            return self._write(self._attempt, is_last)
        except Exception:
            _log.exception("records were lost")
            return True

    def _write(self, attempt: RecordedAttempt, is_last: bool) -> bool:
        phases = self._take_phases() if self._rank == 0 else []
        self._tell_dropped()
        taken = {
            "steps": _taken(self._steps),
            "samples": _taken(self._samples),
            "incidents": _taken(self._incidents),
            "phases": phases,
        }
        tables = {name: table_of(name, attempt, self._rank, rows) for name, rows in taken.items() if rows}
        for name, table in tables.items():
            self._outbox.add(name, attempt, table)
        is_sent = self._outbox.send(attempt)
        if self._sinks:
            rows = {name: list(rows_in(table)) for name, table in tables.items()}
            self._feed(RecordedWindow(attempt=attempt, rows=rows, is_last=is_last))
        return is_sent

    def _take_phases(self) -> list[tuple[Any, ...]]:
        """One span from the last one's end until now, whatever is going on: also half of a long restore."""
        now = self._now()
        # Read before the marks: a mark that comes in between shows that this is over.
        current, since = self._current
        marks = _taken(self._marks)
        if not marks or marks[-1][2] <= since:
            marks.append((current, since, max(since, now)))
        begin, end = self._told_until, max(self._told_until, marks[-1][2])
        self._told_until = end
        seconds: dict[str, float] = {}
        for phase, start_s, end_s in marks:
            seconds[phase] = seconds.get(phase, 0.0) + max(0.0, end_s - max(start_s, begin))
        return [(phase, begin, end, spent) for phase, spent in seconds.items() if spent > 0]

    def _tell_dropped(self) -> None:
        num_dropped = self._num_dropped + self._outbox.num_dropped_rows
        if num_dropped > self._num_told_dropped:
            text = (
                f"{num_dropped - self._num_told_dropped} rows were dropped: no room while the store was away"
            )
            self._num_told_dropped = num_dropped
            self.incident(Incident(kind="dropped records", text=text))

    def _feed(self, window: RecordedWindow) -> None:
        for number, sink in enumerate(self._sinks):
            try:
                sink(window)
            except Exception as error:
                if number not in self._failed_sinks:
                    self._failed_sinks.add(number)
                    _log.warning("%s: %s", type(sink).__name__, error)
                    self.incident(Incident(kind="warning", text=f"{type(sink).__name__}: {error}"))


def word(attempt: RecordedAttempt, one: Incident, *, now_s: float) -> tuple[str, bytes]:
    """The driver's, of an attempt whose workers may not tell it themselves any more: a part's name and bytes.

    Each word is a part of its own, whichever driver leaves it: the microsecond is its number, and of several
    kinds in one each has another.
    """
    number = int(now_s * 1e6) + get_args(IncidentKind).index(one.kind)
    name = PartName(
        run=attempt.run, table="incidents", term=attempt.term, rank=DRIVER, first=number, last=number
    )
    rows = table_of("incidents", attempt, DRIVER, [_incident_row(one, now_s)])
    return str(name), encode_part("incidents", attempt, rows)


def _incident_row(one: Incident, happened_s: float) -> tuple[Any, ...]:
    return (
        one.kind, happened_s, one.step, one.seconds, one.blocked_s, one.num_bytes, one.place,
        one.generation, one.text,
    )  # fmt: skip


def _taken(rows: deque[Any]) -> list[Any]:
    """What is there now; whoever appends meanwhile appends to the next flush."""
    return [rows.popleft() for _ in range(len(rows))]
