"""Passes a sweep's events on to its display, and to those who look at the store."""

from dataclasses import dataclass
from typing import Self

from jobs.execution.messages import Heartbeat
from jobs.run_progress.sweep_progress import SweepProgress
from jobs.sweeps.grid import Run
from jobs.sweeps.live_view import Display
from reporting.results.records import RunRecord


@dataclass(frozen=True, slots=True)
class ProgressDisplay:
    """A display that also tells ``progress``. Both are entered and left by this one."""

    display: Display
    progress: SweepProgress

    def __enter__(self) -> Self:
        self.progress.__enter__()
        self.display.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.display.__exit__(*error)
        self.progress.__exit__(*error)

    def note(self, text: str) -> None:
        self.display.note(text)

    def started(self, run: Run) -> None:
        self.progress.runs(run.name, "starts")
        self.display.started(run)

    def beat(self, run: Run, beat: Heartbeat) -> None:
        is_step = beat.phase in ("warmup", "window")
        self.progress.runs(
            run.name, f"{beat.phase} step {beat.step}/{beat.num_steps}" if is_step else beat.phase
        )
        self.display.beat(run, beat)

    def finished(self, run: Run, record: RunRecord) -> None:
        self.progress.finished(run.name, record.status)
        self.display.finished(run, record)
