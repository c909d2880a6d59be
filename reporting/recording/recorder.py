"""The recorder stores what a worker does without slowing it down: training appends rows, a thread writes
them.

Appending takes a few microseconds and never raises. A crash loses only rows appended since the last flush,
which was at most ``flush_s`` ago. While the store is unavailable nothing is lost until the outbox is full;
then the oldest rows are dropped.
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
# Limit on rows in memory between two flushes. A thousand steps a second reach it in a minute and a half.
_MOST_ROWS = 100_000
_log = logging.getLogger(__name__)


Sink = Callable[[RecordedWindow], None]
# Samples this rank's device. Called in the recorder's thread.
Look = Callable[[], DeviceSample]


class Recorder:
    """Records one rank. Only the training thread may call ``phase`` and ``step``; any thread may call
    ``incident``.
    """

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
        # The wall clock is read once, so that times within an attempt never go backwards.
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
        """Sets ``start_step`` and ``parent_term``, see ``RecordedAttempt``. This triggers a flush at once: if
        a crash lost these values, nobody could tell which earlier steps count.
        """
        self._attempt = replace(self._attempt, start_step=step, parent_term=parent_term)
        self._wake.set()

    def phase(self, name: str) -> None:
        """Starts the phase ``name``; the time since the last call belongs to the phase before. See
        ``ledger.PHASES``. Only rank 0's phases enter the run's ledger.
        """
        now = self._now()
        phase, since = self._current
        self._spent[phase] = self._spent.get(phase, 0.0) + now - since
        if self._rank == 0:
            self._append(self._marks, (phase, since, now))
        self._current = (name, now)

    def step(self, done: Step) -> None:
        """Records a finished step. Its time is what was spent in ``productive`` since the step before; the
        phase then becomes ``data wait``.
        """
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
        """Writes what is left, and gives up after ``timeout_s``."""
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
        """Writes all rows; returns False if some still wait for the store. An unexpected error is logged and
        its rows are lost, so that the training goes on.
        """
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
        """Returns the phases of one span, from the last span's end until now. A phase that is still running,
        such as a long restore, is counted up to now.
        """
        now = self._now()
        # The current phase is read before the marks. If a mark is added in between, that mark shows that this
        # phase has ended.
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
    """Returns the name and bytes of a part with one incident, which a driver writes for an attempt whose
    workers can't.

    Each such incident is a part of its own, whichever driver writes it. The part's number is the time in
    microseconds plus the incident kind's index, so that two kinds in the same microsecond get different
    numbers.
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
    """Takes the rows that are there now. Rows appended meanwhile belong to the next flush."""
    return [rows.popleft() for _ in range(len(rows))]
