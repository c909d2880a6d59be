"""One attempt of a long run on one rank: resume, step, save, and end. Knows nothing of Ray.

Every rank calls ``run`` with the same task. Rank 0 tells what goes on; a failing save is told and never
raised. A failure of the training itself raises, and then the peers may be stuck in a collective.

What any rank is wished, all ranks follow at the same step border: they save, and end. Nothing is lost.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

from checkpointing.cadence import Busy
from checkpointing.history import Finish, Resumed, Stopped
from checkpointing.repository import Repository
from checkpointing.saves import Note
from checkpointing.store import StoreError, open_store
from jobs.training.context import Context
from jobs.training.control import Agreed, Control, Orders
from jobs.training.devices import check_ranks
from jobs.training.events import Ended, Evaluated, Resumption, Warned, Withdrawn, finite
from jobs.training.guarding import Done, Guard
from jobs.training.identities import Expected
from jobs.training.mailbox import open_mailbox
from jobs.training.randomness import RandomState, seed
from jobs.training.recording import Record, recording
from jobs.training.restoring import Start, restore
from jobs.training.samples import Samples
from jobs.training.saving import Point, Saver, near_disk
from jobs.training.skipping import after
from jobs.training.step import train_step
from jobs.training.strategies import Engine, build
from jobs.training.task import Task
from jobs.training.telling import PointAt, Tell, Teller
from jobs.training.wishes import Aim, Wish, stronger

_ALL_BUSY = Busy(disk=True, store=True)
# How soon a wish is heard while ranks wait for samples.
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the place where a rank runs does for it. ``point_at`` is None without Ray.

    ``wish`` is what this rank is wished; once there, it is not taken back. It is asked at each step and never
    waits.
    """

    tell: Tell
    point_at: PointAt | None = None
    wish: Callable[[], Wish | None] = lambda: None


def run(task: Task, context: Context, services: Services) -> None:
    with recording(task, context) as record:
        _run(task, context, services, record)


def _run(task: Task, context: Context, services: Services, record: Record) -> None:
    context.pulse.phase = "setup"
    check_ranks(context, _expected(task))
    repository = Repository(task.open_store(), task.run)
    origin = Repository(open_store(task.origin.store), task.origin.run) if task.origin else None
    seed(task.recipe.seed, context.rank, context.device)
    if task.saving:
        _prove_store(task, context, repository)
    if wish := _shared_wish(context, services):
        # Here nothing is loaded yet: no generation is suspected because of it.
        if context.rank == 0:
            services.tell(Withdrawn(wish=wish))
        return
    engine = build(task.recipe, context.device)
    try:
        record.restoring()
        start = restore(task, context, engine, repository, origin, near_disk(task))
        record.restored(start)
        _tell_start(start, context, services.tell)
        _Attempt(task, context, engine, repository, services, record, start).work()
    finally:
        engine.close()


def _expected(task: Task) -> Expected:
    return Expected(
        world_size=task.recipe.world_size,
        vendor="cpu" if task.simulated else task.vendor,
        may_mix_devices=task.may_mix_devices,
    )


def _prove_store(task: Task, context: Context, repository: Repository) -> None:
    """Every rank must see this attempt's lease: a directory of one node's own is no store for several."""
    terms = [repository.refresh().term] * context.world_size
    dist.all_gather_object(terms, terms[context.rank])
    if blind := [rank for rank, term in enumerate(terms) if term < task.term]:
        raise StoreError(
            f"store: {repository.store.url}: ranks {blind} do not see what rank 0 sees there; a run over "
            "several nodes needs object storage, or a directory that all of them share"
        )


def _shared_wish(context: Context, services: Services) -> Wish | None:
    """The strongest of all ranks', the same on each."""
    wishes: list[Wish | None] = [None] * context.world_size
    dist.all_gather_object(wishes, services.wish())
    return reduce(stronger, wishes)


def _tell_start(start: Start, context: Context, tell: Tell) -> None:
    if start.warning:
        tell(Warned(text=start.warning))
    if context.rank == 0:
        tell(Resumption(step=start.step, generation=start.generation, trail=start.trail))


class _Attempt:
    def __init__(
        self,
        task: Task,
        context: Context,
        engine: Engine,
        repository: Repository,
        services: Services,
        record: Record,
        start: Start,
    ) -> None:
        self._task = task
        self._context = context
        self._engine = engine
        self._repository = repository
        self._services = services
        self._record = record
        self._start = start
        self._samples = Samples(task, context)
        self._control = Control()
        self._guard = Guard(task.spike_bound)
        self._saver = self._make_saver()
        self._step = start.step
        self._position = start.position
        self._busy = Busy()
        self._aim: Aim | None = None
        # Of the next step's samples, on any rank.
        self._are_late = True
        self._is_evaluation_due = start.is_evaluation_due and task.eval_every > 0
        tally = self._saver.tally if self._saver else None
        self._teller = Teller(task, services.tell, services.point_at, tally, start.step)

    def work(self) -> None:
        if self._saver:
            self._saver.start()
        self._context.pulse.phase, self._context.pulse.num_steps = "window", self._task.num_steps
        loss = float("nan")
        self._aim = self._control.agree(self._services.wish()).aim
        if self._is_evaluation_due:
            self._catch_up()
        self._record.phase("data wait")
        while self._step < self._task.num_steps and self._aim is None:
            self._await_samples()
            loss = loss if self._aim else self._do_step()
            if self._step == self._start.step + 1:
                self._note_resumed()
        self._end(loss)
        self._control.close()

    def _catch_up(self) -> None:
        """The evaluation that a wish came between, where the training stood then."""
        val_loss = self._evaluate()
        if val_loss is not None and self._saver:
            before = self._repository.view.generation(self._start.generation or "")
            point = Point(step=self._step, position=self._position, epoch_end=None)
            point = point.with_metrics(**(before.metrics if before else {}), val_loss=val_loss)
            self._saver.cut(point, self._saver.final_order)

    def _await_samples(self) -> None:
        """Where some rank's are late, all wait for it here, and hear what they are wished.

        In the collectives of a step they could not. It costs nothing where all are in time.
        """
        while self._are_late and self._aim is None:
            is_late = not self._samples.wait(self._first_of(self._next_point()), _LOOK_EVERY_S)
            agreed = self._control.agree(self._services.wish(), is_late=is_late)
            self._are_late, self._aim = agreed.is_late, agreed.aim

    def _do_step(self) -> float:
        """Its loss over all ranks, where somebody wants to know it, else NaN."""
        point = self._next_point()
        self._control.begin(
            self._orders(point),
            self._saver.busy() if self._saver else Busy(),
            self._services.wish(),
            is_late=not self._samples.wait(self._begin_after(point.position)),
            is_alarmed=self._guard.is_alarmed,
        )
        started = time.perf_counter()
        first = self._first_of(point)
        rows = self._samples.rows(first)
        self._record.begin_step(self._engine)
        batches = self._samples.on_device(rows)
        self._guard.look_back()
        own_loss = train_step(self._engine, batches)
        norm = self._engine.grad_norm
        self._guard.did(Done(step=point.step, samples=(first, point.position), loss=own_loss, grad_norm=norm))
        agreed = self._control.end()
        orders, self._busy = agreed.orders, agreed.busy
        self._aim, self._are_late = agreed.aim, agreed.is_late
        self._step, self._position = point.step, point.position
        self._context.pulse.step, self._context.pulse.step_s = self._step, time.perf_counter() - started
        loss = self._judged_loss(agreed)
        self._close(point, orders, own_loss, loss)
        return loss

    def _judged_loss(self, agreed: Agreed) -> float:
        """Over all ranks, where somebody wants to know it, else NaN; raises where it went wrong."""
        orders, is_last = agreed.orders, self._step == self._task.num_steps or self._aim is not None
        is_wanted = orders.save or orders.tell or orders.point or is_last
        loss = self._control.mean(self._guard.own_loss()) if is_wanted else float("nan")
        self._guard.judge(agreed.is_alarmed, loss if is_wanted else None)
        return loss

    def _close(self, point: Point, orders: Orders, own_loss: Tensor, loss: float) -> None:
        """What is to be done at the border after the step."""
        if point.is_evaluated:
            val_loss = self._evaluate()
            point = point if val_loss is None else point.with_metrics(val_loss=val_loss)
        if orders.save and self._saver and not self._is_evaluation_due:
            self._record.phase("save")
            self._saver.cut(point.with_metrics(loss=loss), orders.save)
            # What was heard of before this cut says nothing about what is busy after it.
            self._busy = _ALL_BUSY
        if orders.tell and self._context.rank == 0:
            self._teller.progress(self._step, loss)
        if orders.point:
            self._record.phase("stall")
            self._teller.point(self._step, loss)
        num_skipped_saves = self._saver.tally.num_skipped if self._saver else 0
        self._record.end_step(point, self._engine, own_loss, num_skipped_saves)

    def _evaluate(self) -> float | None:
        """The loss over the held-out samples, the same on all ranks; None where a wish came between.

        Then it is still due, and will draw the same random numbers.
        """
        self._record.phase("eval")
        self._is_evaluation_due = True
        before, losses = RandomState(self._context.rank, self._context.device), []
        for ids, labels in self._samples.held_out():
            if self._aim is not None:
                before.restore()
                return None
            self._control.begin(Orders(), Busy(), self._services.wish())
            losses.append(self._engine.evaluate(ids, labels))
            self._aim = self._control.end().aim
        self._is_evaluation_due = False
        val_loss = self._control.mean(torch.stack(losses).mean().item())
        if self._context.rank == 0:
            self._services.tell(Evaluated(step=self._step, val_loss=finite(val_loss)))
        return val_loss

    def _next_point(self) -> Point:
        end = self._begin_after(self._position) + self._task.recipe.sequences_per_step
        return Point(
            step=self._step + 1,
            position=end,
            epoch_end=self._samples.epoch_end(self._position, end),
            is_evaluated=bool(self._task.eval_every) and (self._step + 1) % self._task.eval_every == 0,
        )

    def _begin_after(self, position: int) -> int:
        """Where the samples of the step begin that comes when ``position`` are consumed."""
        return after(position, self._task.skips, num_samples=self._task.recipe.sequences_per_step)

    def _first_of(self, point: Point) -> int:
        return point.position - self._task.recipe.sequences_per_step

    def _orders(self, point: Point) -> Orders:
        """Rank 0's, decided before the step and carried out after it."""
        if self._context.rank != 0:
            return Orders()
        return Orders(
            save=self._saver.order(point, self._busy) if self._saver else None,
            tell=self._teller.is_time_to_tell(),
            point=self._teller.is_time_to_point(),
        )

    def _note_resumed(self) -> None:
        """A step was finished after loading, or none was wanted: the generation is no poison."""
        if self._context.rank == 0 and self._start.is_own and self._start.generation:
            with suppress(StoreError):
                self._repository.append(Resumed(name=self._start.generation), term=self._task.term)

    def _end(self, loss: float) -> None:
        self._record.phase("save")
        is_done = self._step >= self._task.num_steps and not self._is_evaluation_due
        wish = None if is_done else _shared_wish(self._context, self._services)
        assert is_done or wish, "a wish was taken back"
        problem = self._save_the_end(loss) if self._saver and self._has_got_somewhere() else None
        self._teller.point(self._step, loss)
        if self._context.rank != 0:
            return
        if wish and self._step == self._start.step:
            self._note_resumed()
        if problem is None and self._saver:
            problem = self._note_end(wish)
        self._services.tell(
            Ended(
                step=self._step, loss=finite(loss), generation=self._teller.newest, problem=problem, wish=wish
            )
        )

    def _has_got_somewhere(self) -> bool:
        """Else it stands where the run began, or where another run left it."""
        return self._step > self._start.step or (self._start.is_own and self._step > 0)

    def _save_the_end(self, loss: float) -> str | None:
        """Waits for what is on its way, and saves once more unless the last step is durable by then."""
        assert self._saver is not None
        self._saver.wait()
        point = Point(
            step=self._step,
            position=self._position,
            epoch_end=None,
            is_evaluation_due=self._is_evaluation_due,
            metrics={"loss": loss},
        )
        if self._control.from_rank_0(self._saver.tally.durable_step != self._step):
            self._saver.cut(point, self._saver.final_order)
            self._saver.wait()
        is_durable = self._saver.tally.durable_step == self._step
        return None if is_durable else f"step {self._step} could not be saved to the store"

    def _note_end(self, wish: Wish | None) -> str | None:
        """One that moves on has not stopped: its log says nothing until the next attempt begins."""
        try:
            if wish is None:
                self._repository.append(Finish(step=self._step), term=self._task.term)
            elif wish.aim == "stop":
                self._repository.append(Stopped(step=self._step, why=wish.why), term=self._task.term)
        except StoreError as error:
            return str(error)
        return None

    def _make_saver(self) -> Saver | None:
        if self._task.saving is None:
            return None
        mailbox = open_mailbox(self._context)
        saver = Saver(
            self._task,
            self._task.saving,
            self._context,
            self._engine,
            self._repository,
            mailbox,
            self._tell_save,
        )
        before = self._repository.view.generation(self._start.generation or "")
        if before and self._context.rank == 0:
            saver.tally.durable(before)
        return saver

    def _tell_save(self, note: Note) -> None:
        """From the writer's threads. Other ranks' are only told where something went wrong."""
        self._record.save(note)
        if self._context.rank == 0:
            self._services.tell(note)
        elif note.problem:
            where = f"save of step {note.step} to the {note.place}"
            self._services.tell(Warned(text=f"rank {self._context.rank}: {where}: {note.problem}"))
