"""One rank's share in making a generation durable: upload, receipt, commit, read back, make room.

Room that could not be made costs room and nothing else: the save has ended well, and a finding says so once
an hour.

Rank 0 commits once the receipts of all ranks are in; ranks of other hosts tell theirs to the first of their
host, see ``leading``. *Verified* means that a restart can use it: every rank has read its own file back, and
rank 0 and the leaders what they wrote of the manifest, with a restart's own code and limits. Ranks wait for
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
from checkpointing.format.pieces import PieceNote
from checkpointing.format.records import Table
from checkpointing.generations.deletion import AGAIN_AFTER_S
from checkpointing.generations.garbage import sweep
from checkpointing.generations.manifests import read_pieces
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Verified
from checkpointing.log.log import LogFull
from checkpointing.saving.findings import HourlyFinding, not_deleted_text
from checkpointing.saving.publishing.inbox import READ, WRITTEN, Inbox, message_name
from checkpointing.saving.publishing.leading import FAILED, VERIFIED, Host, Leader
from checkpointing.saving.publishing.receipts import (
    Receipt,
    decode_notes,
    decode_receipt,
    encode_receipt,
    merged,
)
from checkpointing.saving.save import Mailbox, Save, SaveFailed, Tally
from checkpointing.stores.contract import StoreError

# A leader waits for its ranks as long as rank 0 does for it, and is to be heard when one does not come.
_LEADERS_LATER = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingAttempt:
    """Settings that hold for all saves of one rank in one attempt. ``table`` has the tensors that rank 0 has
    told all ranks of, see ``receipts``. ``led`` are the ranks of each host that is led; none without a table.
    """

    rank: int
    term: int
    deadline_s: float
    retention: Retention = field(default_factory=Retention)
    table: Table | None = None
    led: tuple[range, ...] = ()


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
        host: Host | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """``host`` is this rank's, if it is led."""
        self._repository = repository
        self._mailbox = mailbox
        self._host = host
        self._leader = None
        if host and host.leader == attempt.rank:
            assert attempt.table is not None
            self._leader = Leader(host, repository, attempt.table, attempt.deadline_s)
        self._inbox = self._leader.inbox if self._leader else Inbox(mailbox, self._senders)
        self._attempt = attempt
        self._tally = tally
        self._unsettled: list[str] = []
        # The first ranks of the pieces that leaders have written of this save.
        self._led: set[int] = set()
        self._ticks = ticks
        self._sweeps_at: float | None = ticks()
        self._finding = HourlyFinding(ticks=ticks)

    def publish(self, save: Save, release: Callable[[], None]) -> str | None:
        """Makes one save durable; calls ``release`` as soon as the save's memory is no longer needed.

        Returns what is wrong although the save is durable and verified, if that is to be told now.
        """
        if self._attempt.rank == 0:
            self._unsettled.append(save.cut.generation)
        elif not self._leader:
            return self._publish(save, release)
        try:
            return self._publish(save, release)
        finally:
            self._inbox.end(save.cut)

    def skip(self, cut: Cut) -> None:
        """Notes that this rank has no share of ``cut``. Any thread may call it."""
        if self._attempt.rank == 0 or self._leader:
            self._inbox.skip(cut)

    def _publish(self, save: Save, release: Callable[[], None]) -> str | None:
        with self._told(save.cut, WRITTEN):
            save = with_digests(save)
            data = save.room.data
            with self._tally.uploading(save.cut.step, len(data), self._ticks):
                self._repository.put_file(save.cut.generation, save.part.file, data)
            release()
            self._tell_receipt(save.cut, encode_receipt(save.cut, save.part, self._attempt.table))
        if self._attempt.rank == 0:
            self._commit(save.cut)
        with self._told(save.cut, READ):
            answer = self._read_back(save.cut, save.part)
            self._post(save.cut, READ, self._leader.read(save.cut, answer) if self._leader else answer)
        if self._attempt.rank == 0:
            self._judge(save.cut)
            return self._finding.due(self._make_room())
        return None

    def _tell_receipt(self, cut: Cut, receipt: bytes) -> None:
        if self._leader is None:
            self._post(cut, WRITTEN, receipt)
            return
        for rank, message in self._leader.written(cut, receipt):
            self._post(cut, WRITTEN, message, of=rank)

    @contextmanager
    def _told(self, cut: Cut, what: str) -> Iterator[None]:
        """Tells rank 0 what was raised instead, for which it would wait until the deadline."""
        try:
            yield
        except BaseException as error:  # also the copy that failed, and a library's panic
            # A path may hold bytes that are no text.
            told = (str(error) or type(error).__name__).encode(errors="backslashreplace")
            self._post(cut, what, FAILED + told)
            raise

    def _commit(self, cut: Cut) -> None:
        self._led.clear()
        place = self._repository.place(cut.generation)
        told = [
            one for rank, others in self._senders(cut).items() for one in self._told_by(cut, rank, others)
        ]
        manifest = merged(cut, told, self._attempt.table, lambda piece: read_pieces(place, [piece]))
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

    def _senders(self, cut: Cut) -> dict[int, range]:
        """The ranks that rank 0 hears, in their order, each with those that it leads."""
        leaders = {ranks.start: ranks[1:] for ranks in self._attempt.led}
        silent = {rank for ranks in leaders.values() for rank in ranks}
        return {rank: leaders.get(rank, range(0)) for rank in range(cut.world_size) if rank not in silent}

    def _told_by(self, cut: Cut, rank: int, others: range) -> Iterator[Receipt | PieceNote]:
        """Yields what is told of ``rank`` and of the ``others`` that it leads."""
        told = self._take(cut, WRITTEN, rank, others)
        if told.startswith(FAILED):
            raise SaveFailed(f"rank {rank} {told.decode()}")
        if others and (notes := decode_notes(told, cut, range(rank, others.stop))):
            self._inbox.expect_no_receipts(cut, others)
            self._led.update(note.piece.first for note in notes)
            yield from notes
            return
        yield decode_receipt(told, cut, rank)
        for other in others:
            passed_on = self._inbox.take(cut, WRITTEN, other, self._attempt.deadline_s, sender=rank)
            yield decode_receipt(passed_on, cut, other)

    def _take(self, cut: Cut, what: str, rank: int, others: range) -> bytes:
        deadline_s = self._attempt.deadline_s * (_LEADERS_LATER if others else 1.0)
        return self._inbox.take(cut, what, rank, deadline_s)

    def _read_back(self, cut: Cut, part: FilePart) -> bytes:
        try:
            verify(part, self._repository.place(cut.generation))
        except Corrupt as error:
            return f"corrupt: {error}".encode()
        except StoreError as error:
            return FAILED + str(error).encode()
        return VERIFIED

    def _judge(self, cut: Cut) -> None:
        name, term = cut.generation, self._attempt.term
        for rank, others in self._senders(cut).items():
            answer = self._take(cut, READ, rank, others)
            if answer.startswith(FAILED):
                raise SaveFailed(f"not verified, because rank {rank} {answer.decode()}")
            if answer != VERIFIED:
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
            self._repository.read_manifest_back(committed, by_others=self._led)
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

    def _post(self, cut: Cut, what: str, value: bytes, *, of: int | None = None) -> None:
        name = message_name(cut, what, self._attempt.rank if of is None else of)
        if self._host and not self._leader:
            self._host.mailbox.post(name, value, to=self._host.leader)
        else:
            self._mailbox.post(name, value, to=0)
