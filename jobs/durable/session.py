"""One attempt of a run on one rank: restore, steps, saves, the end. Every rank makes the same calls."""

import time
from math import isfinite

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Store
from jobs.durable.records import Values
from jobs.durable.telling import Teller
from jobs.runs.stop_signals import StopSignals
from jobs.training.loop.control import Control, Orders, strongest
from jobs.training.loop.ending import note_end, note_resumed, save_the_end
from jobs.training.loop.rank_checks import check_store
from jobs.training.state.near_tiers import NearTiers, local_tier
from jobs.training.state.own_state import OwnState
from jobs.training.state.random_state import RandomState
from jobs.training.state.rank_mailbox import open_mailboxes
from jobs.training.state.restoring import restore_own
from jobs.training.state.saved_run import SavedRun
from jobs.training.state.saving import Saver
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint
from jobs.training.task.sample_order import NEWEST_ORDER, SampleOrder
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Saving

# Longer than any save may take, so that ranks don't give each other up while one of them waits for memory.
_BESIDE_SAVES_S = 2400.0
_METRICS = ("loss", "val_loss")


class Session:
    """``open`` restores the state; ``begin``, then ``end_step`` after each step; ``finish``; ``close``."""

    def __init__(
        self,
        saved: SavedRun,
        saving: Saving,
        context: Context,
        state: OwnState,
        store: Store,
        teller: Teller,
        stop_signals: StopSignals,
    ) -> None:
        self.step = 0
        self.num_steps = 0
        self.generation: str | None = None
        self.sample_order: SampleOrder = NEWEST_ORDER
        self.problem: str | None = None
        self.stop_request: StopRequest | None = None
        self.is_finished = False
        self.context = context
        self.state = state
        self._saved = saved
        self._saving = saving
        self._repository = Repository(store, saved.run)
        self._teller = teller
        self._stop_signals = stop_signals
        self._is_rank_0 = context.rank == 0
        self._random: RandomState | None = None

    def open(self) -> None:
        """Fills the state from the newest good generation, if there is one. Collective."""
        self._teller.open()
        self._stop_signals.began(self._saved.term)
        if self._is_rank_0:
            self._stop_signals.listen(self._repository.store, self._saved.run, self._teller.note)
        started = time.perf_counter()
        check_store(self._saved.term, self.context, self._repository)
        near = NearTiers(disk=local_tier(self._saving, self._saved))
        self._start = restore_own(self._saved, self.context, self.state, self._repository, near)
        self._teller.restored(self._start, time.perf_counter() - started)
        self.step, self.generation, self.sample_order = (
            self._start.step,
            self._start.generation,
            self._start.sample_order,
        )
        if self._start.generation:
            # The script may draw numbers before its first step; that step begins with the saved state.
            self._random = RandomState(self.context.rank, self.context.device)

    def begin(self, num_steps: int) -> bool:
        """Prepares the first step; False if there is none to do. Collective."""
        self.num_steps = num_steps
        timeout_s = _BESIDE_SAVES_S + self._saving.ending_s
        self._control = Control(self._stop_signals.stop_request, timeout_s, self.context.key)
        self._saver = Saver(
            self._saved,
            self._saving,
            self.context,
            self.state,
            self._repository,
            open_mailboxes(self.context),
            self._teller.save,
        )
        self._saver.resume_from(self._start.generation, self.sample_order)
        self._saver.start()
        self._busy = self._saver.busy()
        self._teller.begin(self._start, num_steps)
        self._control.agree()
        self.restore_random()
        self._teller.phase("productive")
        return self.goes_on

    def restore_random(self) -> None:
        """Sets the random generators to their saved state, if the attempt has done no step yet."""
        if self._random and self.step == self._start.step:
            self._random.restore()

    @property
    def goes_on(self) -> bool:
        return self.step < self.num_steps and self._control.aim is None

    def end_step(self, values: Values, *, save: bool) -> bool:
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
        self._teller.step(self.step, values)
        if wanted := self._saver.final_order if agreed.is_alarmed else agreed.orders.save:
            self._teller.phase("save")
            self._saver.adapt()
            self._saver.cut(point.with_metrics(**self._metrics(values)), wanted)
            self._busy = self._saver.busy()
        if self.step == self._start.step + 1:
            self._note_resumed()
        self._teller.progress(self.step, values, self._saver.tally)
        self._teller.phase("productive")
        return self.goes_on

    def finish(self, values: Values) -> None:
        """Saves the last state unless it is saved already, and notes how the run ended. Collective."""
        self._teller.phase("last save")
        stop_request = strongest(self._stop_signals.stop_request())
        is_done = self.step >= self.num_steps or stop_request is None
        self.stop_request = None if is_done else stop_request
        metrics = self._metrics(values)
        if self.step > 0:
            self._saver.adapt()
            point = StepPoint(step=self.step, position=self.step, epoch_end=None, metrics=metrics)
            self.problem = save_the_end(self._saver, self._control, point)
        if self._is_rank_0:
            self._note_end(metrics.get("loss"))
        self.is_finished = True

    def close(self, error: BaseException | None) -> None:
        """Ends all that belongs to this attempt, in whatever state it is."""
        try:
            self._teller.close(self.step, error, is_done=self.stop_request is None)
        finally:
            if self.is_finished:
                self._control.close()

    def _note_end(self, loss: float | None) -> None:
        self.generation = self._saver.tally.durable_name
        if self.stop_request and self.step == self._start.step:
            self._note_resumed()
        if self.problem is None:
            term = self._saved.term
            self.problem = note_end(self._repository, self.step, self.stop_request, term=term)
        self._stop_signals.stop_listening()
        self._teller.end(self.step, loss, self.generation, self.problem, self.stop_request)

    def _note_resumed(self) -> None:
        if self._is_rank_0 and self._start.generation:
            note_resumed(self._repository, self._start.generation, term=self._saved.term)

    def _metrics(self, values: Values) -> dict[str, float]:
        """What a generation says of its step. Rank 0's counts; reading a loss waits for the device."""
        if not self._is_rank_0:
            return {}
        found = {name: values.get(name) for name in _METRICS}
        numbers = {name: float(value) for name, value in found.items() if value is not None}
        return {name: number for name, number in numbers.items() if isfinite(number)}
