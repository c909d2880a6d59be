"""One attempt of a run on one rank: restore, steps, saves, the end. Every rank makes the same calls."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from math import isfinite
from typing import SupportsFloat

from checkpointing.generations.repository import Repository
from checkpointing.saving.save import SaveNote
from checkpointing.stores.contract import Store
from jobs.durable.lease import Lease
from jobs.durable.records import OwnRecord
from jobs.run_progress.run_view import RunDisplay
from jobs.run_progress.status_file import StatusFile
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.own_loop import OwnLoop
from jobs.training.loop.control import Control, Orders, strongest
from jobs.training.loop.ending import note_end, note_resumed, save_the_end
from jobs.training.loop.rank_checks import check_store
from jobs.training.state.own_state import OwnState
from jobs.training.state.random_state import RandomState
from jobs.training.state.rank_mailbox import open_mailbox
from jobs.training.state.restoring import ResumePoint, restore_own
from jobs.training.state.saved_run import SavedRun
from jobs.training.state.saving import Saver, local_tier
from jobs.training.task.context import Context
from jobs.training.task.events import Ended, Progress, Resumption, Warned, finite_or_none
from jobs.training.task.position import StepPoint
from jobs.training.task.stop_request import StopRequest

_REPORT_EVERY_S = 1.0
# Longer than any save may take, so that ranks don't give each other up while one of them waits for memory.
_BESIDE_SAVES_S = 2400.0
_METRICS = ("loss", "val_loss")


class Session:
    """``open`` restores the state; ``begin``, then ``end_step`` after each step; ``finish``; ``close``."""

    def __init__(
        self,
        spec: OwnLoop,
        store: Store,
        context: Context,
        state: OwnState,
        lease: Lease,
        presence: DriverPresence,
        stop_signals: StopSignals,
        *,
        fresh: bool,
        resume: str,
    ) -> None:
        self.step = 0
        self.num_steps = 0
        self.generation: str | None = None
        self.problem: str | None = None
        self.stop_request: StopRequest | None = None
        self._spec = spec
        self._saving = spec.checkpoint.saving()
        self._context = context
        self._state = state
        self._stop_signals = stop_signals
        self._repository = Repository(store, spec.name)
        self._is_rank_0 = context.rank == 0
        self._saved = SavedRun(
            run=spec.name,
            term=lease.term,
            attempt=lease.attempt,
            lineage=lease.lineage,
            strategy="own loop",
            world_size=context.world_size,
            # As under ddp, each rank loads all.
            ranks_per_copy=1,
            about={"ranks_per_copy": 1, "spec": spec.described()},
            resume=resume,
            retention=self._saving.retention,
        )
        self._display = RunDisplay(spec.name, quiet=True, silent=not self._is_rank_0)
        self._status = StatusFile(
            store, spec.name, presence.own, is_fresh=fresh, may_speak=presence.may_speak
        )
        self._record = OwnRecord(spec.name, lease.term, spec.tokens_per_step, context, store)
        self._contexts = ExitStack()
        self._random: RandomState | None = None
        self._reported_s = time.monotonic()
        self._reported_step = 0
        self._last_loss: float | None = None
        self.is_finished = False

    def open(self) -> None:
        """Fills the state from the newest good generation, if there is one. Collective."""
        self._contexts.enter_context(self._status)
        self._contexts.push(self._display.__exit__)
        self._display.__enter__()
        self._display.on_progress(self._status.tell)
        self._display.begins(self._saved.term)
        self._stop_signals.began(self._saved.term)
        if self._is_rank_0:
            self._stop_signals.listen(self._repository.store, self._spec.name, self._display.note)
        self._record.phase("restore")
        started = time.perf_counter()
        check_store(self._saved.term, self._context, self._repository)
        self._start = restore_own(
            self._saved, self._context, self._state, self._repository, local_tier(self._saving, self._saved)
        )
        self._record.restored(self._start, time.perf_counter() - started)
        self._say_start(self._start)
        self.step, self.generation = self._start.step, self._start.generation
        if self._start.generation:
            # The script may draw numbers before its first step; that step begins with the saved state.
            self._random = RandomState(self._context.rank, self._context.device)

    def begin(self, num_steps: int) -> bool:
        """Prepares the first step; False if there is none to do. Collective."""
        self.num_steps = num_steps
        timeout_s = _BESIDE_SAVES_S + self._saving.ending_s
        self._control = Control(self._stop_signals.stop_request, timeout_s, self._context.key)
        mailbox = open_mailbox(self._context)
        self._saver = Saver(
            self._saved, self._saving, self._context, self._state, self._repository, mailbox, self._tell_save
        )
        self._saver.resume_from(self._start.generation)
        self._saver.start()
        self._busy = self._saver.busy()
        self._record.begin(self._start, num_steps)
        self._reported_s, self._reported_step = time.monotonic(), self.step
        self._control.agree()
        self.restore_random()
        self._record.phase("productive")
        return self.goes_on

    def restore_random(self) -> None:
        """Sets the random generators to their saved state, if the attempt has done no step yet."""
        if self._random and self.step == self._start.step:
            self._random.restore()

    @property
    def goes_on(self) -> bool:
        return self.step < self.num_steps and self._control.aim is None

    def end_step(self, values: Mapping[str, SupportsFloat | None], *, save: bool) -> bool:
        """Ends a step; saves if it is time to, or if any rank asks for it. False if it was the last one."""
        point = StepPoint(
            step=self.step + 1,
            position=self.step + 1,
            epoch_end=None,
            is_evaluated=values.get("val_loss") is not None,
        )
        order = self._saver.order(point, self._busy) if self._is_rank_0 else None
        self._control.begin(Orders(save=order), self._saver.busy(), is_alarmed=save)
        agreed = self._control.end()
        self.step, self._busy = point.step, agreed.busy
        self._record.step(self.step, values)
        if wanted := self._saver.final_order if agreed.is_alarmed else agreed.orders.save:
            self._record.phase("save")
            self._saver.adapt()
            self._saver.cut(point.with_metrics(**self._metrics(values)), wanted)
            self._busy = self._saver.busy()
        if self.step == self._start.step + 1:
            self._note_resumed()
        self._report(values)
        self._record.phase("productive")
        return self.goes_on

    def finish(self, values: Mapping[str, SupportsFloat | None]) -> None:
        """Saves the last state unless it is saved already, and notes how the run ended. Collective."""
        self._record.phase("save")
        stop_request = strongest(self._stop_signals.stop_request())
        is_done = self.step >= self.num_steps or stop_request is None
        self.stop_request = None if is_done else stop_request
        metrics = self._metrics(values)
        if self.step > 0:
            self._saver.adapt()
            point = StepPoint(step=self.step, position=self.step, epoch_end=None, metrics=metrics)
            self.problem = save_the_end(self._saver, self._control, point)
        if self._is_rank_0:
            self._note_end(metrics.get("loss", self._last_loss))
        self.is_finished = True

    def close(self, error: BaseException | None) -> None:
        """Ends all that belongs to this attempt, in whatever state it is."""
        self._record.close(self.step, error, is_done=self.stop_request is None)
        if self.is_finished:
            self._control.close()
        self._contexts.__exit__(type(error) if error else None, error, None)

    def _say_start(self, start: ResumePoint) -> None:
        if start.warning and self._is_rank_0:
            self._display.hear(Warned(text=start.warning))
        self._display.hear(Resumption(step=start.step, generation=start.generation, trail=start.trail))

    def _note_end(self, loss: float | None) -> None:
        self.generation = self._saver.tally.durable_name
        if self.stop_request and self.step == self._start.step:
            self._note_resumed()
        if self.problem is None:
            term = self._saved.term
            self.problem = note_end(self._repository, self.step, self.stop_request, term=term)
        self._display.hear(
            Ended(
                step=self.step,
                loss=None if loss is None else finite_or_none(loss),
                generation=self.generation,
                problem=self.problem,
                stop_request=self.stop_request,
            )
        )
        self._display.summarise(None, "the same script")

    def _note_resumed(self) -> None:
        if self._is_rank_0 and self._start.generation:
            note_resumed(self._repository, self._start.generation, term=self._saved.term)

    def _metrics(self, values: Mapping[str, SupportsFloat | None]) -> dict[str, float]:
        """What a generation says of its step. Rank 0's counts; reading a loss waits for the device."""
        if not self._is_rank_0:
            return {}
        found = {name: values.get(name) for name in _METRICS}
        numbers = {name: float(value) for name, value in found.items() if value is not None}
        return {name: number for name, number in numbers.items() if isfinite(number)}

    def _report(self, values: Mapping[str, SupportsFloat | None]) -> None:
        now, tally = time.monotonic(), self._saver.tally
        if not self._is_rank_0 or now - self._reported_s < _REPORT_EVERY_S:
            return
        if (loss := values.get("loss")) is not None:
            self._last_loss = float(loss)
        tokens = (self.step - self._reported_step) * self._spec.tokens_per_step
        self._display.hear(
            Progress(
                step=self.step,
                num_steps=self.num_steps,
                loss=None if self._last_loss is None else finite_or_none(self._last_loss),
                tokens_per_s=tokens / (now - self._reported_s) if tokens else None,
                durable_step=tally.durable_step,
                durable_s=tally.durable_s,
                num_failed_saves=tally.num_failed,
                num_skipped_saves=tally.num_skipped,
            )
        )
        self._reported_s, self._reported_step = now, self.step

    def _tell_save(self, note: SaveNote) -> None:
        """Called by the writer's threads."""
        self._record.save(note)
        if self._is_rank_0 or note.problem:
            self._display.hear(note)
