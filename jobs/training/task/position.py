"""A long run's position in its stream of samples, and where its next step ends. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jobs.training.task.sample_order import epoch_ended
from jobs.training.task.skipping import start_past
from jobs.training.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A step boundary: ``step`` steps are done and ``position`` samples are consumed.

    ``epoch_end`` is the number of the epoch that ends here, if any. ``is_evaluated``: an evaluation follows
    this step. ``is_evaluation_due``: that evaluation was interrupted and must be made up for. ``hand_over``
    is what stands with a checkpoint for the group that goes on from there, if there is any.
    """

    step: int
    position: int
    epoch_end: int | None
    is_evaluated: bool = False
    is_evaluation_due: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    hand_over: Mapping[str, Any] | None = None

    def with_metrics(self, **metrics: float) -> "StepPoint":
        return replace(self, metrics={**self.metrics, **metrics})


class Position:
    """The current step boundary: ``step`` steps done, ``position`` samples consumed. ``reach`` moves it."""

    def __init__(self, task: Task, *, step: int, position: int, epoch_end: int | None = None) -> None:
        self.step = step
        self._position = position
        self._epoch_end = epoch_end
        self._task = task
        self._step_samples = task.recipe.sequences_per_step

    def here(self, *, is_evaluation_due: bool = False) -> StepPoint:
        """The current point."""
        return StepPoint(
            step=self.step,
            position=self._position,
            epoch_end=self._epoch_end,
            is_evaluation_due=is_evaluation_due,
        )

    def next(self) -> StepPoint:
        """The point where the next step ends."""
        step, end = self.step + 1, self.begin_after(self._position) + self._step_samples
        return StepPoint(
            step=step,
            position=end,
            epoch_end=epoch_ended(self._position, end, num_samples=self._task.num_samples),
            is_evaluated=bool(self._task.eval_every) and step % self._task.eval_every == 0,
        )

    def reach(self, point: StepPoint) -> None:
        self.step, self._position, self._epoch_end = point.step, point.position, point.epoch_end

    def begin_after(self, position: int) -> int:
        """The first position of the step that follows after ``position`` samples, past skipped samples."""
        return start_past(position, self._task.skips, num_samples=self._step_samples)

    def first_of(self, point: StepPoint) -> int:
        """The first position of the step that ends at ``point``."""
        return point.position - self._step_samples
