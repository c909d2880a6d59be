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

from reporting.recording.attempts import (
    DRIVER,
    DeviceSample,
    Incident,
    IncidentKind,
    LossesBySource,
    LossOverRanks,
    RecordedAttempt,
    Step,
)
from reporting.recording.outbox import Outbox
from reporting.recording.parts import PartName, encode_part, rows_in, table_of
from reporting.recording.scalars import RecordedWindow
from reporting.recording.steady_clock import steady

_SAMPLE_EVERY_S = 1.0
_RETRY_EVERY_S = 0.5
# Limit on rows in memory between two flushes. A thousand steps a second reach it in a minute and a half.
_MOST_ROWS = 100_000
# The place of the loss in a row of steps.
_LOSS = 7
_log = logging.getLogger(__name__)


Sink = Callable[[RecordedWindow], None]
# Samples this rank's device. Called in the recorder's thread.
SampleDevice = Callable[[], DeviceSample]


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
        sample_device: SampleDevice | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._attempt = attempt
        self._rank = rank
        self._outbox = outbox
        self._flush_s = flush_s
        self._sinks = sinks
        self._sample_device = sample_device
        self._ticks = ticks
        self._now = steady(clock, ticks)
        self._steps: deque[tuple[Any, ...]] = deque()
        self._samples: deque[tuple[Any, ...]] = deque()
        self._incidents: deque[tuple[Any, ...]] = deque()
        self._ended_phases: deque[tuple[str, float, float]] = deque()
        self._current = ("start", self._now())
        self._phases_until_s = self._current[1]
        self._spent: dict[str, float] = {}
        # Seconds of all phases ``data wait`` that have ended.
        self.data_wait_s = 0.0
        self._num_dropped = 0
        self._num_reported_dropped = 0
        self._memory_bytes: int | None = None
        self._failed_sinks: set[int] = set()
        self._close_by = 0.0
        self._done = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attends_by(self, kernel: str) -> None:
        """Sets ``attention_kernel``, see ``RecordedAttempt``."""
        self._attempt = replace(self._attempt, attention_kernel=kernel)

    def begin_at(self, step: int, parent_term: int | None = None, *, num_steps: int | None = None) -> None:
        """Sets ``start_step`` and ``parent_term``, see ``RecordedAttempt``, and ``num_steps`` if it was not
        known before. This triggers a flush at once: if
        a crash lost these values, nobody could tell which earlier steps count.
        """
        num_steps = self._attempt.num_steps if num_steps is None else num_steps
        self._attempt = replace(self._attempt, start_step=step, parent_term=parent_term, num_steps=num_steps)
        self._wake.set()

    def phase(self, name: str) -> None:
        """Starts the phase ``name``; the time since the last call belongs to the phase before. See
        ``ledger.PHASES``. Only rank 0's phases enter the run's ledger.
        """
        now = self._now()
        phase, since = self._current
        self._spent[phase] = self._spent.get(phase, 0.0) + now - since
        self.data_wait_s += now - since if phase == "data wait" else 0.0
        if self._rank == 0:
            self._append(self._ended_phases, (phase, since, now))
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
            done.grad_norm, done.learning_rate, self._memory_bytes, done.val_loss, done.source_losses,
        )  # fmt: skip
        self._append(self._steps, row)

    def incident(self, incident: Incident) -> None:
        self._append(self._incidents, _incident_row(incident, self._now()))

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

    def _work(self) -> None:
        next_flush = self._ticks() + self._flush_s
        while not self._done.is_set():
            left = max(0.0, next_flush - self._ticks())
            is_woken = self._wake.wait(min(left, _SAMPLE_EVERY_S) if self._sample_device else left)
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
        if self._sample_device is None:
            return
        try:
            sample = self._sample_device()
        except Exception as error:
            self.incident(Incident(kind="warning", text=f"the device can't be looked at: {error}"))
            self._sample_device = None
            return
        self._memory_bytes = sample.memory_bytes
        device, *rest = astuple(sample)
        self._append(self._samples, (device, self._now(), *rest))

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
        self._report_dropped()
        taken = {
            "steps": _drained(self._steps) if is_last else self._known_steps(),
            "samples": _drained(self._samples),
            "incidents": _drained(self._incidents),
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

    def _known_steps(self) -> list[tuple[Any, ...]]:
        """Takes the steps before the first whose losses over all ranks are not known yet."""
        taken: list[tuple[Any, ...]] = []
        for _ in range(len(self._steps)):
            late = (self._steps[0][_LOSS], self._steps[0][-1])
            if any(isinstance(one, LossOverRanks | LossesBySource) and not one.is_known for one in late):
                break
            taken.append(self._steps.popleft())
        return taken

    def _take_phases(self) -> list[tuple[Any, ...]]:
        """Returns the phases of one span, from the last span's end until now. A phase that is still running,
        such as a long restore, is counted up to now.
        """
        now = self._now()
        # The current phase is read before those that have ended. If it ends in between, it is among them too.
        current, since = self._current
        phases = _drained(self._ended_phases)
        if not phases or phases[-1][2] <= since:
            phases.append((current, since, max(since, now)))
        begin, end = self._phases_until_s, max(self._phases_until_s, phases[-1][2])
        self._phases_until_s = end
        seconds: dict[str, float] = {}
        for phase, start_s, end_s in phases:
            seconds[phase] = seconds.get(phase, 0.0) + max(0.0, end_s - max(start_s, begin))
        return [(phase, begin, end, spent) for phase, spent in seconds.items() if spent > 0]

    def _report_dropped(self) -> None:
        num_new = self._num_dropped + self._outbox.num_dropped_rows - self._num_reported_dropped
        if num_new:
            self._num_reported_dropped += num_new
            text = f"{num_new} rows were dropped: no room while the store was away"
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


def incident_part(attempt: RecordedAttempt, incident: Incident, *, now_s: float) -> tuple[str, bytes]:
    """Returns the name and bytes of a part with one incident, which a driver writes for an attempt whose
    workers can't.

    Each such incident is a part of its own, whichever driver writes it. The part's number is the time in
    microseconds plus the incident kind's index, so that two kinds in the same microsecond get different
    numbers.
    """
    number = int(now_s * 1e6) + get_args(IncidentKind).index(incident.kind)
    name = PartName(
        run=attempt.run, table="incidents", term=attempt.term, rank=DRIVER, first=number, last=number
    )
    rows = table_of("incidents", attempt, DRIVER, [_incident_row(incident, now_s)])
    return str(name), encode_part("incidents", attempt, rows)


def _incident_row(incident: Incident, happened_s: float) -> tuple[Any, ...]:
    kind, *rest = astuple(incident)
    return (kind, happened_s, *rest)


def _drained(rows: deque[Any]) -> list[Any]:
    """Takes the rows that are there now. Rows appended meanwhile belong to the next flush."""
    return [rows.popleft() for _ in range(len(rows))]
