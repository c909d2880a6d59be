"""One rank's share in making a generation durable: upload, receipt, commit, read back, make room.

Room that could not be made costs room and nothing else: the save has ended well, and a finding says so once
an hour.

Rank 0 commits once the receipts of all ranks are in. *Verified* means that a restart can use it: every rank
has read its own file back, and rank 0 the manifest, with a restart's own code and limits. Ranks wait for
each other at most ``deadline_s``. No collective operation is used.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from checkpointing.errors import Corrupt
from checkpointing.format.digests import digests
from checkpointing.format.loading import verify
from checkpointing.format.manifest import Cut, FilePart
from checkpointing.format.records import Table
from checkpointing.generations.deletion import AGAIN_AFTER_S
from checkpointing.generations.garbage import sweep
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Verified
from checkpointing.log.log import LogFull
from checkpointing.saving.findings import HourlyFinding, not_deleted_text
from checkpointing.saving.publishing.inbox import READ, WRITTEN, Inbox, message_name
from checkpointing.saving.publishing.receipts import Receipt, decode_receipt, encode_receipt, merged
from checkpointing.saving.save import Mailbox, Save, SaveFailed, Tally
from checkpointing.stores.contract import StoreError

_FAILED = b"failed: "
_VERIFIED = b"verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingAttempt:
    """Settings that hold for all saves of one rank in one attempt. ``table`` has the tensors that rank 0 has
    told all ranks of, see ``receipts``.
    """

    rank: int
    term: int
    deadline_s: float
    retention: Retention = field(default_factory=Retention)
    table: Table | None = None


def with_digests(save: Save) -> Save:
    if save.part.chunks:
        return save
    return replace(save, part=replace(save.part, chunks=digests(save.room.data)))


class Publisher:
    def __init__(
        self,
        repository: Repository,
        mailbox: Mailbox,
        attempt: SavingAttempt,
        tally: Tally,
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._mailbox = mailbox
        self._inbox = Inbox(mailbox)
        self._attempt = attempt
        self._tally = tally
        self._unsettled: list[str] = []
        self._ticks = ticks
        self._sweeps_at: float | None = ticks()
        self._finding = HourlyFinding(ticks=ticks)

    def publish(self, save: Save, release: Callable[[], None]) -> str | None:
        """Makes one save durable; calls ``release`` as soon as the save's memory is no longer needed.

        Returns what is wrong although the save is durable and verified, if that is to be told now.
        """
        if self._attempt.rank != 0:
            return self._publish(save, release)
        self._unsettled.append(save.cut.generation)
        try:
            return self._publish(save, release)
        finally:
            self._inbox.end(save.cut)

    def skip(self, cut: Cut) -> None:
        """Notes that this rank has no share of ``cut``. Any thread may call it."""
        if self._attempt.rank == 0:
            self._inbox.skip(cut)

    def _publish(self, save: Save, release: Callable[[], None]) -> str | None:
        with self._told(save.cut, WRITTEN):
            save = with_digests(save)
            data = save.room.data
            with self._tally.uploading(save.cut.step, len(data), self._ticks):
                self._repository.put_file(save.cut.generation, save.part.file, data)
            release()
            self._post(save.cut, WRITTEN, encode_receipt(save.cut, save.part, self._attempt.table))
        if self._attempt.rank == 0:
            self._commit(save.cut)
        with self._told(save.cut, READ):
            self._post(save.cut, READ, self._read_back(save.cut, save.part))
        if self._attempt.rank == 0:
            self._judge(save.cut)
            return self._finding.due(self._make_room())
        return None

    @contextmanager
    def _told(self, cut: Cut, what: str) -> Iterator[None]:
        """Tells rank 0 what was raised instead, for which it would wait until the deadline."""
        try:
            yield
        except BaseException as error:  # also the copy that failed, and a library's panic
            # A path may hold bytes that are no text.
            told = (str(error) or type(error).__name__).encode(errors="backslashreplace")
            self._post(cut, what, _FAILED + told)
            raise

    def _commit(self, cut: Cut) -> None:
        receipts = [self._receipt_of(cut, rank) for rank in range(cut.world_size)]
        manifest = merged(cut, receipts, self._attempt.table)
        try:
            generation = self._repository.commit(manifest, term=self._attempt.term)
        except LogFull:
            # Room is made after a save that succeeded, and none would succeed any more. What was unpinned
            # is known once the log was read.
            self._repository.refresh()
            self._repository.retire(self._attempt.retention, term=self._attempt.term)
            generation = self._repository.commit(manifest, term=self._attempt.term)
        self._unsettled.remove(cut.generation)
        self._tally.num_committed += 1
        self._tally.durable(generation)

    def _receipt_of(self, cut: Cut, rank: int) -> Receipt:
        found = self._inbox.take(cut, WRITTEN, rank, self._attempt.deadline_s)
        if found.startswith(_FAILED):
            raise SaveFailed(f"rank {rank} {found.decode()}")
        return decode_receipt(found, cut, rank)

    def _read_back(self, cut: Cut, part: FilePart) -> bytes:
        try:
            verify(part, self._repository.place(cut.generation))
        except Corrupt as error:
            return f"corrupt: {error}".encode()
        except StoreError as error:
            return _FAILED + str(error).encode()
        return _VERIFIED

    def _judge(self, cut: Cut) -> None:
        name, term = cut.generation, self._attempt.term
        for rank in range(cut.world_size):
            answer = self._inbox.take(cut, READ, rank, self._attempt.deadline_s)
            if answer.startswith(_FAILED):
                raise SaveFailed(f"not verified, because rank {rank} {answer.decode()}")
            if answer != _VERIFIED:
                self._tally.damaged()
                self._repository.quarantine(name, f"rank {rank}: {answer.decode()}", term=term)
                raise SaveFailed(f"quarantined, because rank {rank} read back: {answer.decode()}")
        self._read_manifest_back(cut)
        # ``_make_room`` follows at once.
        self._repository.append(Verified(name=name), term=term, hint_later=True)

    def _read_manifest_back(self, cut: Cut) -> None:
        """Reads the manifest as a restart does. Raises ``SaveFailed`` unless a restart could use it."""
        name = cut.generation
        committed = self._repository.view.generation(name)
        if committed is None:
            raise SaveFailed("not verified, because it was given up meanwhile")
        try:
            self._repository.manifest(committed, with_shards=False)
        except Corrupt as error:
            self._tally.damaged()
            self._repository.quarantine(name, f"manifest: {error}", term=self._attempt.term)
            raise SaveFailed(f"quarantined, because its manifest was read back: {error}") from error
        except StoreError as error:
            raise SaveFailed(f"not verified, because its manifest can't be read: {error}") from error

    def _make_room(self) -> str | None:
        """Returns why less was deleted than should have been. Raises only if the attempt is over."""
        problem = None
        try:
            self._repository.retire(self._attempt.retention, term=self._attempt.term)
            # Their late commits cannot land any more: newer records have taken their numbers.
            self._repository.discard(self._unnamed(), term=self._attempt.term)
            self._unsettled.clear()
            self._sweep()
        except StoreError as error:
            problem = f"room could not be made: {error}"
        return not_deleted_text(self._repository.not_deleted) or problem

    def _unnamed(self) -> list[str]:
        view = self._repository.view
        return [name for name in self._unsettled if not view.generation(name)]

    def _sweep(self) -> None:
        """Once per attempt is enough: only attempts that ended badly leave garbage."""
        if self._sweeps_at is None or self._ticks() < self._sweeps_at:
            return
        self._sweeps_at = self._ticks() + AGAIN_AFTER_S
        sweep(self._repository, term=self._attempt.term, now=datetime.now(UTC))
        self._sweeps_at = None

    def _post(self, cut: Cut, what: str, value: bytes) -> None:
        self._mailbox.post(message_name(cut, what, self._attempt.rank), value, to=0)
