"""The work of a rank at a step boundary: evaluate, save, report. All ranks do the same.

Rank 0 gives its orders before the step begins, so that no rank waits for an order.
"""

from collections.abc import Mapping
from dataclasses import replace

from checkpointing.saving.cadence import Busy, Order, busy_after
from jobs.training.integrity.checking import Checks
from jobs.training.loop.control import Agreed, Control, Orders
from jobs.training.loop.evaluation import Evaluation
from jobs.training.loop.hand_over_check import HandOverCheck
from jobs.training.loop.progress_reports import ProgressReporter
from jobs.training.loop.recording import AttemptRecord
from jobs.training.state.saving import Saver
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint


class StepBoundary:
    """Carries out the orders at each step boundary. ``saver`` is None if nothing is saved."""

    def __init__(
        self,
        context: Context,
        evaluation: Evaluation,
        hand_over: HandOverCheck,
        checks: Checks,
        saver: Saver | None,
        reporter: ProgressReporter,
        record: AttemptRecord,
    ) -> None:
        self._is_rank_0 = context.rank == 0
        self._evaluation = evaluation
        self._hand_over = hand_over
        self._checks = checks
        self._saver = saver
        self._reporter = reporter
        self._record = record
        # The newest agreed state over all ranks.
        self._busy = Busy()

    def orders(self, point: StepPoint) -> Orders:
        """Rank 0's orders, decided before the step and carried out after it; empty on other ranks."""
        if not self._is_rank_0:
            return Orders()
        return Orders(
            save=self._saver.order(point, self._busy) if self._saver else None,
            report=self._reporter.is_report_due(),
            checkpoint_report=self._reporter.is_checkpoint_report_due(),
            check=self._checks.order(),
        )

    def own_busy(self) -> Busy:
        return self._saver.busy() if self._saver else Busy()

    def may_leave(self, point: StepPoint) -> bool:
        """Whether the state at ``point`` may be left for the next attempt. One that went on from behind an
        epoch's end that is still on its way to the store would never save it.
        """
        return point.epoch_end is not None or not self._busy.epochs_end

    def cross(self, point: StepPoint, agreed: Agreed, loss: float) -> StepPoint:
        """Does the work at ``point``; returns the point with its new metrics.

        ``loss`` is over all ranks; NaN if this step did not need it.
        """
        self._busy = agreed.busy
        self._checks.is_ordered = agreed.orders.check
        if point.is_evaluated:
            val_loss = self._evaluate(point.step)
            point = point if val_loss is None else point.with_metrics(val_loss=val_loss)
        if agreed.orders.save and self._saver and not self._evaluation.is_due:
            if self._hand_over.leaves_losses:
                self._record.phase("check")
            left = self._hand_over.left(in_store=agreed.orders.save.to_store)
            self._record.phase("save")
            self._cut(replace(point.with_metrics(loss=loss), hand_over=left), agreed.orders.save)
        self._report(agreed.orders, point.step, loss)
        return point

    def catch_up(self, point: StepPoint, metrics: Mapping[str, float]) -> None:
        """Makes up for an evaluation that a stop request interrupted, at the same ``point``.

        ``metrics`` are those of the generation that was loaded; the new save has them and the new loss.
        """
        val_loss = self._evaluate(point.step)
        if val_loss is not None:
            self._save_durably(point.with_metrics(**metrics, val_loss=val_loss))

    def save_again(self, point: StepPoint, metrics: Mapping[str, float], control: Control) -> None:
        """Saves the epoch's end at which an attempt begins, if its save was lost on its way to the store.
        Collective.
        """
        if point.epoch_end is None or self._saver is None:
            return
        if control.from_rank_0(not self._saver.has_stored_end(point)):
            self._save_durably(point.with_metrics(**metrics))

    def _save_durably(self, point: StepPoint) -> None:
        if self._saver:
            point = replace(point, hand_over=self._hand_over.left(in_store=True))
            self._cut(point, self._saver.final_order)

    def _cut(self, point: StepPoint, order: Order) -> None:
        if self._saver:
            self._saver.cut(point, order)
            self._busy = busy_after(order, self._busy, is_epochs_end=point.epoch_end is not None)

    def _evaluate(self, step: int) -> float | None:
        self._record.phase("eval")
        val_loss = self._evaluation.work()
        if val_loss is not None and self._is_rank_0:
            self._reporter.evaluated(step, val_loss)
        return val_loss

    def _report(self, orders: Orders, step: int, loss: float) -> None:
        if orders.report and self._is_rank_0:
            self._reporter.progress(step, loss, self._record.data_wait_s)
        if orders.checkpoint_report:
            self._record.phase("stall")
            self._reporter.report_checkpoint(step, loss)
