"""Saves a rank's state: it is copied at a step boundary, or from there on until the next update.

Other threads do the rest. ``sharing_memory`` says where snapshots stay that never leave the hosts' memory.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from checkpointing.errors import taken_over
from checkpointing.format.manifest import Cut, FilePart
from checkpointing.format.records import Table, table_of
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import newest_good, of_this_life
from checkpointing.saving.cadence import (
    Busy,
    Order,
    SavesSoFar,
    SkippedSave,
    behind_epochs_end,
    next_order,
    with_memory,
)
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import Save, SaveNote, Tally
from checkpointing.saving.snapshot import Arena, Copying, layout
from checkpointing.saving.writer import Writer
from checkpointing.stores.contract import StoreError
from jobs.training.ranks.gathering import from_rank_0
from jobs.training.state.near_tiers import local_tier, memory_tier
from jobs.training.state.random_state import RandomState, digest_of_next_numbers
from jobs.training.state.rank_mailbox import Mailboxes, open_mailboxes
from jobs.training.state.saved_run import (
    EngineState,
    SavedOrder,
    SavedRun,
    TrainingState,
    cut_of,
    part_of,
    saved_run,
)
from jobs.training.state.sharing_memory import share_memory
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint
from jobs.training.task.sample_order import SampleOrder
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Saving, Task

# A message of rank 0 to all may have 16 MiB.
_MOST_TOLD = 2**15
# One is written out while the next cut is copied into the other.
_NUM_ARENAS = 2
# So long nothing behind an epoch's end stays on the nodes alone. With a store that is away or very slow, the
# steps that a failure would cost are worth more.
_MOST_HELD_S = 60.0


class Saver:
    """One rank's saver. It allocates and touches its memory when made: twice the size of the rank's state.

    Making one is collective.
    """

    def __init__(
        self,
        saved: SavedRun,
        saving: Saving,
        context: Context,
        state: TrainingState,
        repository: Repository,
        mailboxes: Mailboxes,
        report: Callable[[SaveNote], None],
    ) -> None:
        self.tally = context.status.tally = Tally()
        self._saved = saved
        self._saving = saving
        self._context = context
        self._state = state
        self._repository = repository
        self._random = RandomState(context.rank, context.device)
        self._pieces = state.pieces() + self._random.pieces()
        self._layout = layout(self._pieces)
        self._arenas = self._new_arenas()
        self._unsettled: Copying | None = None
        table = _told_by_rank_0(self._part())
        attempt = SavingAttempt(
            rank=context.rank,
            term=saved.term,
            deadline_s=saving.deadline_s,
            retention=saving.retention,
            table=table,
            led=mailboxes.led if table else (),
        )
        self._publisher = Publisher(
            repository, mailboxes.to_rank_0, attempt, self.tally, host=mailboxes.host if table else None
        )
        self._disk = local_tier(saving, saved, lambda: newest_good(repository.view))
        self._memory = memory_tier(saving, saved)
        self._copies = (
            share_memory(self._memory, saving, context, self._layout.num_bytes) if self._memory else None
        )
        self._writer = Writer(self._disk, self._publisher, self.tally, report, self._copies)
        self.final_order = Order(to_disk=saving.cadence.disk_every > 0, to_store=True, must_wait=True)
        self._saves_so_far = SavesSoFar(last_s=time.monotonic())
        self._number = 0
        self._resumed: str | None = None
        self._order = SavedOrder()

    def resume_from(
        self, name: str | None, sample_order: SampleOrder, stretches: RecordedStretches = ()
    ) -> None:
        """Counts the loaded generation as durable if it is one of this run. Only rank 0 keeps that count.

        The position of all saves is one in ``sample_order`` and, of a mixture, in ``stretches``.
        """
        self._order = SavedOrder(sample_order=sample_order, stretches=stretches)
        self._resumed = name
        if self._copies:
            self._copies.resume_from(name)
        before = self._repository.view.generation(name or "")
        if before and self._context.rank == 0:
            self.tally.durable(before)

    def start(self) -> None:
        """Removes garbage from disk and memory, and starts the writer.

        Call it before the first step: no save may be on its way to a disk that is being tidied.
        """
        if self._disk is not None and self._context.local_rank == 0:
            with suppress(StoreError):
                self._disk.tidy()
            with suppress(StoreError):
                # Ranks move between hosts, so the shares here may be those of ranks that are elsewhere now.
                self._disk.free_before(newest_good(self._repository.refresh()))
        if self._memory is not None and self._context.local_rank == 0:
            with suppress(StoreError):
                self._memory.tidy()
                self._memory.forget(but=self._resumed)
                self._memory.forget_old_runs(now_s=time.time())
        self._writer.start()

    def busy(self) -> Busy:
        """Whether a save of this rank to either place would have to wait."""
        return Busy(
            disk=self._writer.room(self._arenas, to_store=False) is None,
            store=self._writer.room(self._arenas, to_store=True) is None,
            memory=self._writer.room(self._arenas, to_store=False, is_for_memory_alone=True) is None,
            is_disk_failing=self._writer.is_disk_failing,
            epochs_end=self._saving.retention.keeps_epochs and self._writer.has_epochs_end(_MOST_HELD_S),
        )

    def has_stored_end(self, point: StepPoint) -> bool:
        """Whether the store has the epoch's end at ``point`` for good, as far as rank 0 knows."""
        return any(
            (one.epoch_end, one.step) == (point.epoch_end, point.step) and one.is_whole
            for one in of_this_life(self._repository.view)
        )

    def order(self, point: StepPoint, busy: Busy) -> Order | None:
        """Rank 0's order for all ranks: what to save at ``point``, the end of the next step; None if nothing.

        Raises if another attempt has taken the run over.
        """
        if self.tally.is_fenced:
            raise taken_over(self._saved.run, self._repository.view.term, self._repository.view.owner)
        decision, self._saves_so_far = next_order(
            self._saving.cadence,
            self._saves_so_far,
            step=point.step,
            now_s=time.monotonic(),
            busy=busy,
            is_epoch_end=point.epoch_end is not None,
            is_evaluated=point.is_evaluated,
        )
        decision = with_memory(self._saving.cadence, decision, step=point.step, busy=busy)
        decision = behind_epochs_end(decision, busy=busy)
        if isinstance(decision, SkippedSave):
            self.tally.num_skipped += 1
            return None
        return decision

    def adapt(self) -> None:
        """Looks at the state anew. Call it before ``cut`` where tensors may have come, gone or moved.

        Memory is allocated only if names, shapes or types have changed. A save on its way keeps its own.
        """
        self._pieces = self._state.pieces() + self._random.pieces()
        if (new := layout(self._pieces)) != self._layout:
            self._layout = new
            self._arenas = self._new_arenas()

    def cut(self, point: StepPoint, order: Order) -> None:
        """Copies this rank's whole state at a step boundary and hands it to the writer. Every rank calls it.

        Where copies are ``lazy`` it only begins to: call ``settle`` before the state changes.

        Waits for free memory up to ``deadline_s`` if the order says so, else not at all. Without free memory
        the save is skipped, and the other ranks' shares of it are dropped.
        """
        self.settle()
        self._number += 1
        timeout_s = self._saving.deadline_s if order.must_wait else 0.0
        started = time.perf_counter()
        arena = self._writer.room(
            self._arenas,
            to_store=order.to_store,
            is_for_memory_alone=order.is_for_memory_alone,
            timeout_s=timeout_s,
        )
        if arena is None:
            self.tally.num_skipped += 1
            if order.to_store:
                self._publisher.skip(self._cut(point))
            if order.to_memory:
                self._writer.skip_in_memory()
            return
        assert isinstance(arena, Arena)
        self._random.capture()
        copying: Copying | None = None
        if self._saving.copies_lazily:
            self._unsettled = copying = arena.begin(self._pieces)
        else:
            arena.take(self._pieces)
        blocked_s = time.perf_counter() - started
        self._writer.hand_over(
            Save(
                cut=self._cut(point),
                part=self._part(),
                room=arena,
                to_disk=order.to_disk,
                to_store=order.to_store,
                to_memory=order.to_memory,
                blocked_s=blocked_s,
                waited_s=lambda: copying.waited_s if copying else 0.0,
            )
        )

    @property
    def is_copying(self) -> bool:
        return self._unsettled is not None

    def settle(self) -> None:
        """Returns once the state of the last cut may change."""
        if self._unsettled:
            self._unsettled.settle()
            self._unsettled = None

    def wait(self) -> None:
        """Waits for saves on their way, up to three times ``deadline_s``."""
        # Upload, receipts, reading back: each has a deadline of its own.
        self._writer.finish(3 * self._saving.deadline_s)

    def forget_memory(self) -> None:
        """Gives the hosts' memory back. Call it once all is durable, or the run ends."""
        if self._memory is not None and self._context.local_rank == 0:
            with suppress(StoreError):
                self._memory.forget()

    def close(self) -> None:
        """Call it at the end of an attempt, once all ranks have waited for their saves."""
        if self._copies:
            self._copies.close()

    def _new_arenas(self) -> list[Arena]:
        return [Arena(self._pieces, self._layout) for _ in range(_NUM_ARENAS)]

    def _cut(self, point: StepPoint) -> Cut:
        return cut_of(self._saved, point, self._number, self._order, self._state.description())

    def _part(self) -> FilePart:
        return part_of(self._context.rank, self._layout, digest_of_next_numbers(self._context.device))


def _told_by_rank_0(part: FilePart) -> Table | None:
    """The tensors of rank 0, so that no receipt need repeat them; None if they are too many. Collective."""
    table = table_of([part])
    is_small = len(table.tensors) <= _MOST_TOLD
    return from_rank_0(table if is_small else None, Table | None)


def saver_for(
    task: Task,
    context: Context,
    engine: Engine,
    repository: Repository,
    report: Callable[[SaveNote], None],
) -> Saver | None:
    """The rank's saver; None if nothing is saved. Collective. Background threads call ``report``."""
    if task.saving is None:
        return None
    state = EngineState(engine)
    return Saver(saved_run(task), task.saving, context, state, repository, open_mailboxes(context), report)
