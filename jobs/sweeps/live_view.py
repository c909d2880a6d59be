"""Shows a sweep's progress while it runs. No other module imports ``rich``.

A terminal gets a live table. Elsewhere each event prints one line, which ``ray job submit`` streams, and so
does a silence of some seconds.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jobs.commandline.exit_codes import EXIT_READER_GONE
from jobs.commandline.output import printable
from jobs.execution.messages import Heartbeat
from jobs.sweeps.grid import Run
from jobs.sweeps.plan import Plan
from jobs.sweeps.sweep_clock import SweepClock
from reporting.results.records import RunRecord

_STEP_LINE_EVERY = 10
_STEP_LINE_EVERY_S = 10.0
# After so long without a line one tells that the sweep goes on.
_SILENCE_S = 8.0


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
    clock = SweepClock(total=len(runs), guess_s=expected_s(runs, plans), began_s=time.monotonic())
    return _LiveDisplay(console, clock) if console.is_terminal else _LineDisplay(console, clock)


class _Console(Console):
    is_reader_gone = False

    def on_broken_pipe(self) -> NoReturn:
        """Ends the sweep as a shell expects it, with no more output. No cell takes it for its own failure."""
        self.quiet = self.is_reader_gone = True
        raise SystemExit(EXIT_READER_GONE)

    def say(self, text: str) -> None:
        """Prints a line. In another thread than the main one the reader's end would go unheard, so the next
        line ends the sweep.
        """
        if self.is_reader_gone:
            raise SystemExit(EXIT_READER_GONE)
        self.print(printable(text), markup=False)


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
    def __init__(self, console: _Console, clock: SweepClock) -> None:
        self._console = console
        self._clock = clock
        self._lines: dict[str, _StepLine] = {}
        self._shown_s = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._break_silence, name="sign of life", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def note(self, text: str) -> None:
        self._shown_s = time.monotonic()
        self._console.say(text)

    def _break_silence(self) -> None:
        while not self._done.wait(max(0.0, self._shown_s + _SILENCE_S - time.monotonic())):
            if time.monotonic() - self._shown_s >= _SILENCE_S:
                self.note(self._clock.text(time.monotonic()))

    def started(self, run: Run) -> None:
        self._clock.started(time.monotonic())
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
        self._clock.finished(time.monotonic())
        self.note(f"{self._clock.text(time.monotonic())} {_outcome(run, record)}")


class _LiveDisplay:
    def __init__(self, console: _Console, clock: SweepClock) -> None:
        self._console = console
        self._clock = clock
        self._running: dict[str, str] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.clear()
        self._live.stop()

    def note(self, text: str) -> None:
        self._console.say(text)

    def started(self, run: Run) -> None:
        self._clock.started(time.monotonic())
        self._running[run.run_id] = f"starts {run.name}"

    def beat(self, run: Run, beat: Heartbeat) -> None:
        self._running[run.run_id] = _short_line(run, beat)

    def finished(self, run: Run, record: RunRecord) -> None:
        self._clock.finished(time.monotonic())
        self._running.pop(run.run_id, None)
        self.note(_outcome(run, record))

    def _render(self) -> Group:
        lines = (*self._running.values(), self._clock.text(time.monotonic()))
        # A line that wraps would not be erased as a whole.
        return Group(*(Text(text, no_wrap=True, overflow="ellipsis") for text in lines))


def _short_line(run: Run, beat: Heartbeat) -> str:
    """What changes comes first: a narrow terminal cuts off the end of the name."""
    is_stepping = beat.phase in ("warmup", "window")
    steps = f" {beat.step}/{beat.num_steps}, {beat.step_s:.3f} s" if is_stepping else ""
    return f"{beat.phase}{steps}: {run.name}"


def _outcome(run: Run, record: RunRecord) -> str:
    if record.status == "ok" and record.tokens_per_sec and record.mean_step_time_sec:
        step_ms = record.mean_step_time_sec * 1e3
        return f"{run.name}: ok, {record.tokens_per_sec:,.0f} tokens/s, {step_ms:.1f} ms/step"
    reason = record.error.reason if record.error else ""
    return f"{run.name}: {record.status}: {reason}"
