"""Carries saves in the background from arena to memory, local disk and store, one at a time at each place.

Every outcome of a save ends in a ``SaveNote``, never in the training. An unreachable store or a full disk
costs that save and is reported, as does whatever a library raises: no thread ends. A slower place takes
fewer saves and never delays a faster one.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from socket import gethostname

from checkpointing.errors import Fenced
from checkpointing.saving.findings import HourlyFinding
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.publishing.publisher import Publisher, with_digests
from checkpointing.saving.save import KeptInMemory, Save, SaveFailed, SaveMemory, SaveNote, Tally, Tell
from checkpointing.stores.contract import StoreError

_log = logging.getLogger(__name__)


class Writer:
    """Owns a thread for each place. ``disk`` and ``memory`` are None if they are not used.

    ``is_disk_failing``: the last save to the disk failed. The disk is tried again with each save.
    Of saves in memory only what is wrong is told, once an hour.
    """

    def __init__(
        self,
        disk: LocalTier | None,
        publisher: Publisher,
        tally: Tally,
        tell: Tell,
        memory: KeptInMemory | None = None,
    ) -> None:
        self._disk = disk
        self._memory = memory
        self._publisher = publisher
        self._tally = tally
        self._tell = tell
        self._disk_finding = HourlyFinding()
        self._kept_finding, self._copied_finding = HourlyFinding(), HourlyFinding()
        self._changed = threading.Condition(threading.RLock())
        self._rooms: dict[str, SaveMemory] = {}
        self._at_disk: Save | None = None
        self._at_store: Save | None = None
        self._store_since_s = 0.0
        self._is_at_memory = False
        self.is_disk_failing = False
        self._to_memory: SimpleQueue[Save | None] = SimpleQueue()
        self._to_disk: SimpleQueue[Save] = SimpleQueue()
        self._to_store: SimpleQueue[Save] = SimpleQueue()

    def start(self) -> None:
        works = [self._work_for_disk, self._work_for_store]
        if self._memory:
            works.append(self._work_for_memory)
        for work in works:
            threading.Thread(target=work, name=work.__name__.strip("_"), daemon=True).start()

    def room(
        self,
        rooms: Sequence[SaveMemory],
        *,
        to_store: bool,
        is_for_memory_alone: bool = False,
        timeout_s: float = 0.0,
    ) -> SaveMemory | None:
        """Returns memory that a save may use now or within ``timeout_s``; None if an earlier save blocks
        it.
        """

        def is_ready() -> bool:
            is_busy = self._at_disk is not None or (to_store and self._at_store is not None)
            if is_for_memory_alone:
                is_busy = self._is_at_memory
            return not is_busy and bool(self._free(rooms))

        with self._changed:
            self._changed.wait_for(is_ready, timeout_s)
            return self._free(rooms)[0] if is_ready() else None

    def has_epochs_end(self, within_s: float) -> bool:
        """Whether the end of an epoch is on its way to the store, not verified yet, and for no longer than
        that.
        """
        save = self._at_store
        is_end = save is not None and save.cut.epoch_end is not None
        return is_end and time.monotonic() - self._store_since_s <= within_s

    def hand_over(self, save: Save) -> None:
        """Takes the save over and returns at once. Its memory belongs to the writer until ``room`` hands it
        out again.
        """
        with self._changed:
            self._rooms[save.cut.generation] = save.room
            if save.to_store:
                self._at_store, self._store_since_s = save, time.monotonic()
            self._at_disk = save if save.to_disk and self._disk else self._at_disk
            if save.to_memory and self._memory:
                self._is_at_memory = True
                self._to_memory.put(save)
            else:
                self._pass_on(save)

    def skip_in_memory(self) -> None:
        """Notes that this rank has no share of a save that others keep in memory."""
        if self._memory:
            with self._changed:
                self._is_at_memory = True
                self._to_memory.put(None)

    def finish(self, timeout_s: float) -> bool:
        """Waits for all saves handed over; returns whether they ended within ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._at_disk or self._at_store or self._is_at_memory), timeout_s
            )

    def _pass_on(self, save: Save) -> None:
        """Gives a save to the places that are slower than memory. Call it with ``_changed`` held."""
        if save.to_disk and self._disk:
            self._to_disk.put(save)
        elif save.to_store:
            self._to_store.put(save)
        else:
            self._release(save)

    def _free(self, rooms: Sequence[SaveMemory]) -> list[SaveMemory]:
        return [room for room in rooms if not any(room is used for used in self._rooms.values())]

    def _work_for_memory(self) -> None:
        while True:
            is_kept, save = False, self._to_memory.get()
            if save is not None:
                save, is_kept = self._carry(save, "memory", self._keep_in_memory, self._kept_finding)
                with self._changed:
                    self._pass_on(save)
            self._exchange(save if is_kept else None)
            with self._changed:
                self._is_at_memory = False
                self._changed.notify_all()

    def _keep_in_memory(self, save: Save) -> str | None:
        assert self._memory is not None
        try:
            return self._memory.keep(save)
        except StoreError as error:
            raise SaveFailed(f"on {gethostname()}: {error}") from error

    def _exchange(self, save: Save | None) -> None:
        assert self._memory is not None
        memory = self._memory
        if save is not None:
            self._carry(save, "memory", memory.exchange, self._copied_finding)
            return
        try:
            self._copied_finding.due(memory.exchange(None))
        except BaseException as error:
            # No save of this rank can tell of it. A host may be unable to keep anything, after each step.
            if self._copied_finding.due(str(error) or type(error).__name__):
                _log.exception("copies of other hosts' saves could not be kept")

    def _work_for_disk(self) -> None:
        while True:
            save, _ = self._carry(self._to_disk.get(), "disk", self._keep)
            with self._changed:
                if save.to_store:
                    self._to_store.put(save)
                else:
                    self._release(save)
                self._at_disk = None
                self._changed.notify_all()

    def _work_for_store(self) -> None:
        while True:
            save, _ = self._carry(self._to_store.get(), "store", self._publish)
            with self._changed:
                self._release(save)
                self._at_store = None
                self._changed.notify_all()

    def _keep(self, save: Save) -> str | None:
        assert self._disk is not None
        self.is_disk_failing = True
        try:
            finding = self._disk.keep(save.cut, save.part, save.room.data)
        except StoreError as error:
            raise SaveFailed(f"on {gethostname()}: {error}") from error
        self.is_disk_failing = False
        return self._disk_finding.due(f"on {gethostname()}: {finding}" if finding else None)

    def _publish(self, save: Save) -> str | None:
        return self._publisher.publish(save, lambda: self._release(save))

    def _release(self, save: Save) -> None:
        with self._changed:
            # Released by name, because a later save may already use the same memory.
            self._rooms.pop(save.cut.generation, None)
            self._changed.notify_all()

    def _carry(
        self,
        save: Save,
        place: str,
        carry: Callable[[Save], str | None],
        hourly: HourlyFinding | None = None,
    ) -> tuple[Save, bool]:
        """Returns the save with its digests, and whether all went well. With ``hourly``, no more is told than
        what it says is due.
        """
        started = time.perf_counter()
        problem = finding = None
        try:
            # For the store the publisher computes them: other ranks wait for what becomes of it.
            save = save if place == "store" else with_digests(save)
            finding = carry(save)
        except BaseException as error:
            # Whatever a library raises costs this save and not this thread, without which none would ever
            # end. A panic of the object library is no Exception.
            problem = str(error) or type(error).__name__
            self._tally.num_failed += 1
            self._tally.is_fenced = self._tally.is_fenced or isinstance(error, Fenced)
        if hourly and not hourly.due(problem or finding):
            return save, problem is None
        note = SaveNote(
            step=save.cut.step,
            generation=save.cut.generation,
            place=place,
            num_bytes=save.part.num_bytes,
            blocked_s=save.blocked_s + save.waited_s(),
            took_s=time.perf_counter() - started,
            problem=problem,
            finding=finding,
        )
        try:
            self._tell(note)
        except BaseException:
            # Nothing else reports this error, and without this thread no save would ever end.
            _log.exception("could not tell of %s", note)
        return save, problem is None
