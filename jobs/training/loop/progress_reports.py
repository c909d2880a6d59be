"""Reports a long run's progress and, to Ray, its newest save; decides when each report is due."""

import time
from collections.abc import Callable

from checkpointing.saving.save import Tally
from jobs.training.task.events import Ended, Evaluated, Progress, RunEvent, finite
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

Tell = Callable[[RunEvent], None]
# Reports a durable generation to Ray Train: its name, its step, the loss. Every rank takes part.
PointAt = Callable[[str | None, int, float], None]

_REPORT_EVERY_S = 1.0
# Not more often: each of Ray's reports waits for the next poll of Ray's controller.
_POINT_EVERY_S = 10.0


class ProgressReporter:
    """``tally`` is None if nothing is saved; ``point_at`` is None without Ray."""

    def __init__(
        self, task: Task, tell: Tell, point_at: PointAt | None, tally: Tally | None, step: int
    ) -> None:
        self._task = task
        self._tell = tell
        self._point_at = point_at
        self._tally = tally
        self._last_reported_s = self._last_pointed_s = time.monotonic()
        self._last_reported_step = step
        self._pointed_at: str | None = None

    @property
    def newest(self) -> str | None:
        """The newest durable generation."""
        return self._tally.durable_name if self._tally else None

    def is_report_due(self) -> bool:
        return time.monotonic() - self._last_reported_s >= _REPORT_EVERY_S

    def is_checkpoint_report_due(self) -> bool:
        is_new = self._point_at is not None and self.newest != self._pointed_at
        return is_new and time.monotonic() - self._last_pointed_s >= _POINT_EVERY_S

    def progress(self, step: int, loss: float) -> None:
        now, tally = time.monotonic(), self._tally
        num_tokens = (step - self._last_reported_step) * self._task.recipe.tokens_per_step
        self._tell(
            Progress(
                step=step,
                num_steps=self._task.num_steps,
                loss=finite(loss),
                tokens_per_s=num_tokens / (now - self._last_reported_s),
                durable_step=tally.durable_step if tally else None,
                durable_s=tally.durable_s if tally else None,
                num_failed_saves=tally.num_failed if tally else 0,
                num_skipped_saves=tally.num_skipped if tally else 0,
            )
        )
        self._last_reported_s, self._last_reported_step = now, step

    def evaluated(self, step: int, val_loss: float) -> None:
        self._tell(Evaluated(step=step, val_loss=finite(val_loss)))

    def ended(self, step: int, loss: float, problem: str | None, wish: StopRequest | None) -> None:
        self._tell(Ended(step=step, loss=finite(loss), generation=self.newest, problem=problem, wish=wish))

    def point(self, step: int, loss: float) -> None:
        """Reports the newest save to Ray. Collective; does nothing without Ray or without saving."""
        if self._point_at is None or self._tally is None:
            return
        newest, self._last_pointed_s = self.newest, time.monotonic()
        self._point_at(newest if newest != self._pointed_at else None, step, loss)
        self._pointed_at = newest
