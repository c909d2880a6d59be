"""One attempt of a long run on one rank: resume, step, save, and end. Knows nothing of Ray.

Every rank calls ``run`` with the same task. Rank 0 reports the run's events. A failed save is reported and
never raised. A failure of the training itself raises; the other ranks may then be stuck in a collective.

If any rank gets a stop request, all ranks follow it at the same step boundary: they save and end, so that
nothing is lost.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

from torch import Tensor

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.saving.save import SaveNote
from checkpointing.stores.opening import open_store
from cluster.probe import door
from jobs.training.data.samples import Samples
from jobs.training.device.rank_device import check_ranks
from jobs.training.health.failures import AgreedFailure, is_out_of_memory
from jobs.training.health.late_figure import LateFigure
from jobs.training.health.loss_guard import RankLossGuard, StepDone
from jobs.training.integrity.checking import Checks
from jobs.training.loop.control import Agreed, Control, strongest
from jobs.training.loop.ending import note_end, note_resumed, save_the_end
from jobs.training.loop.evaluation import Evaluation
from jobs.training.loop.hand_over_check import HandOverCheck
from jobs.training.loop.last_state import LastState, last_state_of
from jobs.training.loop.progress_reports import ProgressReporter, Report, ReportCheckpoint
from jobs.training.loop.rank_checks import check_store
from jobs.training.loop.recording import AttemptRecord, recording
from jobs.training.loop.replay import Replay
from jobs.training.loop.step_boundary import StepBoundary
from jobs.training.models.head import keeping_row_losses
from jobs.training.models.marking import marking
from jobs.training.state.near_tiers import near_tiers_of
from jobs.training.state.random_state import seed
from jobs.training.state.restoring import ResumePoint, restore
from jobs.training.state.saved_run import SavedOrder
from jobs.training.state.saving import saver_for
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.events import Replayed, Resumption, Warned, Withdrawn
from jobs.training.task.job import split_copies
from jobs.training.task.position import Position, StepPoint
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services that a launcher gives to a rank. ``report_checkpoint`` is None without Ray.

    ``stop_request`` returns this rank's stop request, or None. It is called at each step, never waits, and
    never takes a request back. ``offer_last_state`` gets what may leave this rank's state for the next
    attempt, and ``will_leave`` is told how many seconds that takes, at most, when it begins.
    """

    report: Report
    report_checkpoint: ReportCheckpoint | None = None
    stop_request: Callable[[], StopRequest | None] = lambda: None
    offer_last_state: Callable[[LastState], None] = lambda state: None
    will_leave: Callable[[float], None] = lambda seconds: None


def run(task: Task, context: Context, services: Services) -> None:
    with recording(task, context) as record:
        _run(task, context, services, record)


def _run(task: Task, context: Context, services: Services, record: AttemptRecord) -> None:
    context.status.phase = "setup"
    _warn_of_split_copies(check_ranks(context, task), task, context, services.report)
    repository = Repository(task.open_store(), task.run)
    origin = Repository(open_store(task.origin.store), task.origin.run) if task.origin else None
    seed(task.recipe.seed, context.rank, context.device)
    if task.saving:
        check_store(task.term, context, repository)
    if stop_request := strongest(services.stop_request()):
        # Nothing is loaded yet, so ending here does not count as a failed load of a generation.
        if context.rank == 0:
            services.report(Withdrawn(stop_request=stop_request))
        return
    if task.recipe.is_emulated(task.vendor) and context.rank == 0:
        services.report(Warned(text=f"fp8: {task.recipe.fp8} is simulated on a CPU, which makes it slower"))
    engine = build(task.recipe, context.device)
    try:
        record.restoring()
        start = restore(task, context, engine, repository, origin, near_tiers_of(task))
        record.restored(start)
        _report_start(start, context, services.report)
        _Attempt(task, context, engine, repository, services, record, start).work()
    finally:
        engine.close()


def _warn_of_split_copies(nodes: list[str], task: Task, context: Context, report: Report) -> None:
    text = split_copies(task.recipe.shard_within, nodes)
    if text and context.rank == 0:
        report(Warned(text=text))


def _report_start(start: ResumePoint, context: Context, report: Report) -> None:
    if start.warning:
        report(Warned(text=start.warning))
    if context.rank == 0:
        report(Resumption(step=start.step, generation=start.generation, trail=start.trail))


class _Attempt:
    def __init__(
        self,
        task: Task,
        context: Context,
        engine: Engine,
        repository: Repository,
        services: Services,
        record: AttemptRecord,
        start: ResumePoint,
    ) -> None:
        self._task = task
        self._context = context
        self._engine = engine
        self._repository = repository
        self._services = services
        self._record = record
        self._start = start
        self._position = Position(task, step=start.step, position=start.position, epoch_end=start.epoch_end)
        self._samples = Samples(task, context, start.sample_order, start.stretches)
        # Whether the next step's samples are late on any rank.
        self._are_late = True
        self._control = Control(
            services.stop_request,
            task.longest_wait_s,
            context.key,
            num_sums=2 * len(self._samples.sources),
        )
        self._checks = Checks(task, context, engine, self._samples, start.step, services.report)
        self._loss_guard = RankLossGuard(task.spike_bound, start.stretches)
        self._saver = saver_for(task, context, engine, repository, self._report_save)
        order = SavedOrder(sample_order=start.sample_order, stretches=start.stretches)
        self._last_state = last_state_of(task, context, engine, order, services.will_leave)
        if self._last_state:
            services.offer_last_state(self._last_state)
        tally = self._saver.tally if self._saver else None
        self._reporter = ProgressReporter(
            task, services.report, services.report_checkpoint, tally, start.step
        )
        is_due = start.is_evaluation_due and task.eval_every > 0
        self._evaluation = Evaluation(context, engine, self._samples, self._control, is_due=is_due)
        self._hand_over = HandOverCheck(task, context, engine, self._samples, start)
        self._boundary = StepBoundary(
            context, self._evaluation, self._hand_over, self._checks, self._saver, self._reporter, record
        )
        self._replay: Replay | None = None
        # The weights of a mixture may have changed since.
        if context.rank == 0 and start.term is not None and not task.mixture:
            repeats = context.device.type == "cpu" or task.recipe.deterministic
            end = self._position.next().position
            self._replay = Replay(task, start.step, start.term, end, self._tell_replay, repeats=repeats)

    def work(self) -> None:
        try:
            self._work()
        except (AgreedFailure, Fenced):
            if self._last_state:
                self._last_state.forbid()
            raise
        except Exception as error:
            if self._last_state and not is_out_of_memory(error):
                self._last_state.leave()
            raise

    def _work(self) -> None:
        if self._hand_over.is_due:
            self._take_over()
        if self._saver:
            start = self._start
            self._saver.resume_from(start.generation, start.sample_order, start.stretches)
            self._saver.start()
        if self._replay:
            self._replay.start()
        status = self._context.status
        status.phase, status.step, status.num_steps = "window", self._start.step, self._task.num_steps
        loss = float("nan")
        self._control.agree()
        if self._evaluation.is_due:
            self._boundary.catch_up(self._position.here(), self._start.metrics)
        else:
            self._boundary.save_again(self._position.here(), self._start.metrics, self._control)
        self._record.phase("data wait")
        while self._position.step < self._task.num_steps and self._control.aim is None:
            if self._are_late:
                self._control.wait(
                    partial(self._samples.wait, self._position.first_of(self._position.next()))
                )
            loss = loss if self._control.aim else self._do_step()
            if self._position.step == self._start.step + 1:
                self._note_resumed()
        self._end(loss)
        if self._saver:
            self._saver.close()
        self._control.close()

    def _take_over(self) -> None:
        self._record.phase("check")
        verdict = self._hand_over.compare()
        if self._context.rank == 0:
            self._tell_replay(Replayed(step=self._start.step, text=verdict.text, agrees=verdict.agrees))
        self._record.phase("start")

    def _do_step(self) -> float:
        """Does one step; returns its loss over all ranks, or NaN if this step does not need that loss."""
        point = self._position.next()
        self._announce(point)
        started = time.perf_counter()
        done = self._train(point)
        self._is_whole(point, is_crossed=False)
        agreed = self._control.end()
        self._position.reach(point)
        self._are_late = agreed.is_late
        self._context.status.step, self._context.status.step_s = point.step, time.perf_counter() - started
        loss = self._judged_loss(agreed)
        point = self._boundary.cross(point, agreed, loss)
        self._is_whole(replace(point, is_evaluation_due=self._evaluation.is_due), is_crossed=True)
        num_skipped_saves = self._saver.tally.num_skipped if self._saver else 0
        self._record.end_step(point, done, num_skipped_saves)
        self._note_loss(point.step - 2, agreed.mean_loss, agreed.sums)
        return loss

    def _is_whole(self, point: StepPoint, *, is_crossed: bool) -> None:
        if not self._last_state or not self._boundary.may_leave(point):
            return
        # That a step went wrong is told two steps later, and nobody may go on from there.
        if isfinite(self._loss_guard.own_loss()):
            self._last_state.is_whole(point, is_crossed=is_crossed)

    def _announce(self, point: StepPoint) -> None:
        """Sends this rank's part of the control word for the step that ends at ``point``; does not wait."""
        self._control.begin(
            self._boundary.orders(point),
            self._boundary.own_busy(),
            is_late=not self._samples.wait(self._position.begin_after(point.position)),
            is_alarmed=self._loss_guard.is_alarmed,
            # That of the step before the last: the device may still be at the last one.
            loss=self._loss_guard.checked_loss,
            sums=self._loss_guard.checked_sums,
        )

    def _train(self, point: StepPoint) -> StepDone:
        """Launches the step that ends at ``point``. The device may still be at it, but at none before."""
        first = self._position.first_of(point)
        rows = self._samples.rows(first)
        self._hand_over.did(first, rows)
        if self._checks.is_due(point.step):
            self._record.phase("check")
            self._checks.check(point.step, rows)
        self._record.begin_step(self._engine)
        batches = self._samples.on_device(rows)
        weight = self._weight(rows)
        with (
            self._marking(point.step),
            keeping_row_losses() if self._samples.sources else nullcontext() as of_rows,
        ):
            loss = train_step(self._engine, batches, weight, self._before_update)
            norm = self._engine.grad_norm
        done = StepDone(
            step=point.step,
            samples=(first, point.position),
            loss=LateFigure(loss),
            grad_norm=None if norm is None else LateFigure(norm),
            by_source=LateFigure(self._samples.by_source(first, of_rows)) if of_rows else None,
        )
        self._loss_guard.check_last_step()
        self._loss_guard.add(done)
        return done

    def _before_update(self) -> None:
        self._checks.conclude()
        self._settle_save()
        if self._last_state:
            self._last_state.changes()

    def _settle_save(self) -> None:
        """Waits until the state of the last save may change."""
        if self._saver and self._saver.is_copying:
            self._record.phase("save")
            self._saver.settle()
            self._record.phase("productive")

    @contextmanager
    def _marking(self, step: int) -> Iterator[None]:
        """Marks in the work of a device how far it is in ``step``, for the heartbeats."""
        device, marks = self._context.device, self._context.marks
        if device.type == "cpu":
            yield
            return
        with marking(lambda: marks.launch(step - 1, door.event(device))):
            yield
        marks.launch(step, door.event(device))

    def _weight(self, rows: list[Tensor]) -> float:
        """What makes the mean over all tokens of the step a mean over those that are trained on."""
        if not self._samples.has_unlabelled:
            return 1.0
        num_trained = self._samples.num_trained(rows)
        self._record.trains_on(num_trained)
        recipe = self._task.recipe
        # Rows of others may hold no label. Then the loss is 0, whatever the weight.
        mean = max(self._control.mean(num_trained), 1 / recipe.world_size)
        return recipe.tokens_per_step / recipe.world_size / mean

    def _judged_loss(self, agreed: Agreed) -> float:
        """The loss over all ranks, or NaN if this step does not need it. Raises if the loss went wrong.

        The mean is a collective of its own, so only saves, reports and the last step compute it.
        """
        orders = agreed.orders
        is_last = self._position.step == self._task.num_steps or self._control.aim is not None
        is_wanted = orders.save or orders.report or orders.checkpoint_report or is_last
        loss = self._control.mean(self._loss_guard.own_loss()) if is_wanted else float("nan")
        self._loss_guard.judge(agreed.is_alarmed, loss if is_wanted else None)
        return loss

    def _last_loss(self, loss: float) -> float:
        """The last step's loss over all ranks. NaN if this attempt did no step.

        ``_judged_loss`` may have left it out: a stop request can also arrive between two steps.
        """
        if isfinite(loss) or self._position.step == self._start.step:
            return loss
        loss = self._control.mean(self._loss_guard.own_loss())
        self._loss_guard.judge(False, loss)
        return loss

    def _record_last_losses(self, loss: float) -> None:
        """Records the losses of the last two steps, which no control word told any more."""
        step = self._position.step
        if step == self._start.step:
            return
        self._note_loss(step, loss, self._control.sums(self._loss_guard.own_sums()))
        if step > self._start.step + 1:
            before = self._control.mean(self._loss_guard.loss_before())
            self._note_loss(step - 1, before, self._control.sums(self._loss_guard.sums_before()))

    def _note_loss(self, step: int, mean: float | None, sums: Sequence[float] | None) -> None:
        """Notes the loss of ``step`` over all ranks, once it is known."""
        self._record.mean_loss(step, mean, sums)
        if self._replay and mean is not None:
            self._replay.told(step, mean)

    def _tell_replay(self, found: Replayed) -> None:
        self._record.replayed(found)
        self._services.report(found)

    def _end(self, loss: float) -> None:
        self._record.phase("last save")
        loss = self._last_loss(loss)
        self._record_last_losses(loss)
        is_done = self._position.step >= self._task.num_steps and not self._evaluation.is_due
        stop_request = None if is_done else strongest(self._services.stop_request())
        assert is_done or stop_request, "a stop request was taken back"
        problem = self._save_the_end(loss, is_done=is_done)
        self._reporter.report_checkpoint(self._position.step, loss)
        if self._replay:
            self._replay.close()
        if self._context.rank == 0:
            self._report_end(loss, problem, stop_request)

    def _save_the_end(self, loss: float, *, is_done: bool) -> str | None:
        """Saves the end and returns the problem, if any. Saves nothing if the run has done no step.

        A run that starts from another run saves only beyond that run's step. A finished run always saves.
        """
        has_progress = self._position.step > (0 if self._start.is_own else self._start.step)
        if not self._saver or not (has_progress or is_done):
            return None
        point = self._position.here(is_evaluation_due=self._evaluation.is_due)
        point = replace(point, hand_over=self._hand_over.left(in_store=True))
        problem = save_the_end(self._saver, self._control, point.with_metrics(loss=loss))
        if self._control.from_rank_0(problem is None):
            self._saver.forget_memory()
            if self._last_state:
                self._last_state.forbid()
        return problem

    def _report_end(self, loss: float, problem: str | None, stop_request: StopRequest | None) -> None:
        step = self._position.step
        if stop_request and step == self._start.step:
            self._note_resumed()
        if problem is None and self._saver:
            problem = note_end(self._repository, step, stop_request, term=self._task.term)
        self._reporter.ended(step, loss, problem, stop_request)

    def _note_resumed(self) -> None:
        if self._context.rank == 0 and self._start.is_own and self._start.generation:
            note_resumed(self._repository, self._start.generation, term=self._task.term)

    def _report_save(self, note: SaveNote) -> None:
        """Records and reports a save; called by the writer's threads. Ranks above 0 report only failures."""
        self._record.save(note)
        if self._context.rank == 0:
            self._services.report(note)
        elif text := note.problem or note.finding:
            self._services.report(Warned(text=f"rank {self._context.rank}: {note.what}: {text}"))
