"""Reports a long run's progress and, to Ray, its newest save; decides when each report is due."""

import time
from collections.abc import Callable

from checkpointing.saving.save import Tally
from cluster.local_ray.timeouts import asked_every_s
from jobs.training.task.events import Ended, Evaluated, Progress, RunEvent, finite_or_none
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

Report = Callable[[RunEvent], None]
# Reports a durable generation to Ray Train: its name, its step, the loss. Every rank takes part.
ReportCheckpoint = Callable[[str | None, int, float], None]

_REPORT_EVERY_S = 1.0
# Not more often: a report waits until Ray's controller has fetched the one before.
_CHECKPOINT_EVERY_S = 10.0


class ProgressReporter:
    """``tally`` is None if nothing is saved; ``report_checkpoint`` is None without Ray."""

    def __init__(
        self,
        task: Task,
        report: Report,
        report_checkpoint: ReportCheckpoint | None,
        tally: Tally | None,
        step: int,
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._ticks = ticks
        # A controller sleeps for an interval, and may wait as long for the answers.
        self._checkpoint_every_s = max(_CHECKPOINT_EVERY_S, 2 * asked_every_s(task.recipe.world_size))
        self._report = report
        self._report_checkpoint = report_checkpoint if tally else None
        self._tally = tally or Tally()
        self._last_report_s = self._last_checkpoint_s = ticks()
        self._last_report_step = step
        self._last_data_wait_s = 0.0
        self._reported_checkpoint: str | None = None

    @property
    def newest(self) -> str | None:
        """The newest durable generation."""
        return self._tally.durable_name

    def is_report_due(self) -> bool:
        return self._ticks() - self._last_report_s >= _REPORT_EVERY_S

    def is_checkpoint_report_due(self) -> bool:
        is_new = self._report_checkpoint is not None and self.newest != self._reported_checkpoint
        return is_new and self._ticks() - self._last_checkpoint_s >= self._checkpoint_every_s

    def progress(self, step: int, loss: float, data_wait_s: float) -> None:
        """``data_wait_s`` is how long this rank waited for samples so far, in all of this attempt."""
        now, tally = self._ticks(), self._tally
        num_tokens = (step - self._last_report_step) * self._task.recipe.tokens_per_step
        lasted_s, waited_s = now - self._last_report_s, data_wait_s - self._last_data_wait_s
        self._report(
            Progress(
                step=step,
                num_steps=self._task.num_steps,
                loss=finite_or_none(loss),
                tokens_per_s=num_tokens / lasted_s,
                durable_step=tally.durable_step,
                durable_s=tally.durable_s,
                num_failed_saves=tally.num_failed,
                num_skipped_saves=tally.num_skipped,
                # Two clocks may differ a little, and a wait may have begun before the last report.
                data_wait_share=min(1.0, max(0.0, waited_s / lasted_s)),
            )
        )
        self._last_report_s, self._last_report_step = now, step
        self._last_data_wait_s = data_wait_s

    def evaluated(self, step: int, val_loss: float) -> None:
        self._report(Evaluated(step=step, val_loss=finite_or_none(val_loss)))

    def ended(self, step: int, loss: float, problem: str | None, stop_request: StopRequest | None) -> None:
        self._report(
            Ended(
                step=step,
                loss=finite_or_none(loss),
                generation=self.newest,
                problem=problem,
                stop_request=stop_request,
            )
        )

    def report_checkpoint(self, step: int, loss: float) -> None:
        """Reports the newest save to Ray. Collective; does nothing without Ray or without saving."""
        if self._report_checkpoint is None:
            return
        newest, self._last_checkpoint_s = self.newest, self._ticks()
        self._report_checkpoint(newest if newest != self._reported_checkpoint else None, step, loss)
        self._reported_checkpoint = newest
