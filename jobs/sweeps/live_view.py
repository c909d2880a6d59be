"""Shows a sweep's progress while it runs. No other module imports ``rich``.

A terminal gets a live table. Elsewhere each event prints one line, which ``ray job submit`` streams.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jobs.commandline.exit_codes import EXIT_READER_GONE
from jobs.commandline.output import printable
from jobs.execution.messages import Heartbeat
from jobs.sweeps.grid import Run
from jobs.sweeps.plan import Plan
from reporting.results.records import RunRecord

_STEP_LINE_EVERY = 10
_STEP_LINE_EVERY_S = 10.0


class Display(Protocol):
    """Receives every event, in order, and decides what to show. The work runs inside its context."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def note(self, text: str) -> None: ...

    def started(self, run: Run) -> None: ...

    def beat(self, run: Run, beat: Heartbeat) -> None: ...

    def finished(self, run: Run, record: RunRecord) -> None: ...


def open_display(
    runs: Sequence[Run], plans: dict[str, Plan], *, quiet: bool, silent: bool = False
) -> Display:
    """Opens the display for ``runs``: a live table on a terminal, else lines.

    ``quiet`` writes to standard error, so that standard output stays free for JSON. ``silent`` shows nothing.
    """
    console = _Console(stderr=quiet, quiet=silent, highlight=False, soft_wrap=True)
    clock = _Clock(total=len(runs), expected_s=expected_s(runs, plans))
    return _LiveDisplay(console, clock) if console.is_terminal else _LineDisplay(console, clock)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Ends the sweep as a shell expects it, with no more output. No cell takes it for its own failure."""
        self.quiet = True
        raise SystemExit(EXIT_READER_GONE)


def expected_s(runs: Sequence[Run], plans: dict[str, Plan]) -> float | None:
    """The expected time of the longest queue, since groups work in parallel.

    None if the time of any run can't be predicted.
    """
    queues: dict[str, float] = {}
    for run in runs:
        predicted_s = plans[run.cell.cell_id].predicted_s
        if predicted_s is None:
            return None
        queues[run.cell.group] = queues.get(run.cell.group, 0.0) + predicted_s
    return max(queues.values(), default=0.0)


@dataclass(slots=True, kw_only=True)
class _Clock:
    """How far the sweep is. Once a run has ended, the remaining time comes from measured times.

    A search for the best setting may take more runs than the ``total`` that it expects.
    """

    total: int
    expected_s: float | None
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def remaining_s(self) -> float | None:
        if self.done:
            return self.elapsed_s / self.done * max(0, self.total - self.done)
        return self.expected_s


@dataclass(slots=True)
class _StepLine:
    """Formats the line of the running cell: step, step time, the average so far, memory."""

    run: Run
    num_beats: int = 0
    total_s: float = 0.0
    shown_step: int = 0
    shown_at: float = 0.0

    def text(self, beat: Heartbeat) -> str:
        self.num_beats += 1
        self.total_s += beat.step_s
        if beat.phase not in ("warmup", "window"):
            return f"{self.run.name}: {beat.phase}"
        platform = self.run.cell.group.upper()
        return (
            f"[{platform}] {self.run.name} {beat.phase} step {beat.step:>4}/{beat.num_steps} | "
            f"time {beat.step_s:.3f} s | avg {self.total_s / self.num_beats:.3f} s | "
            f"memory {beat.memory_bytes / 1e9:.2f} GB"
        )


class _LineDisplay:
    def __init__(self, console: Console, clock: _Clock) -> None:
        self._console = console
        self._clock = clock
        self._lines: dict[str, _StepLine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def started(self, run: Run) -> None:
        self._lines[run.run_id] = _StepLine(run, shown_at=time.monotonic())

    def beat(self, run: Run, beat: Heartbeat) -> None:
        """Prints at most one line per ten steps and ten seconds, so short cells print none."""
        line = self._lines.setdefault(run.run_id, _StepLine(run, shown_at=time.monotonic()))
        text = line.text(beat)
        due = time.monotonic() - line.shown_at >= _STEP_LINE_EVERY_S
        if due and abs(beat.step - line.shown_step) >= _STEP_LINE_EVERY:
            line.shown_step, line.shown_at = beat.step, time.monotonic()
            self.note(text)

    def finished(self, run: Run, record: RunRecord) -> None:
        self._clock.done += 1
        self.note(f"{_progress(self._clock)} {_outcome(run, record)}")


class _LiveDisplay:
    def __init__(self, console: Console, clock: _Clock) -> None:
        self._clock = clock
        self._lines: dict[str, _StepLine] = {}
        self._running: dict[str, str] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.clear()
        self._live.stop()

    def note(self, text: str) -> None:
        self._live.console.print(printable(text), markup=False)

    def started(self, run: Run) -> None:
        self._lines[run.run_id] = _StepLine(run)
        self._running[run.run_id] = f"{run.name}: starts"

    def beat(self, run: Run, beat: Heartbeat) -> None:
        line = self._lines.setdefault(run.run_id, _StepLine(run))
        self._running[run.run_id] = line.text(beat)

    def finished(self, run: Run, record: RunRecord) -> None:
        self._clock.done += 1
        self._running.pop(run.run_id, None)
        self.note(_outcome(run, record))

    def _render(self) -> Group:
        return Group(*(Text(text) for text in self._running.values()), Text(_progress(self._clock)))


def _progress(clock: _Clock) -> str:
    remaining = "?" if clock.remaining_s is None else _duration(clock.remaining_s)
    total = max(clock.total, clock.done)
    return f"{clock.done}/{total} runs, {_duration(clock.elapsed_s)} elapsed, {remaining} remaining"


def _outcome(run: Run, record: RunRecord) -> str:
    if record.status == "ok" and record.tokens_per_sec and record.mean_step_time_sec:
        step_ms = record.mean_step_time_sec * 1e3
        return f"{run.name}: ok, {record.tokens_per_sec:,.0f} tokens/s, {step_ms:.1f} ms/step"
    reason = record.error.reason if record.error else ""
    return f"{run.name}: {record.status}: {reason}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
