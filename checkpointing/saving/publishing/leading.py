"""What the first rank of a host does for all ranks there, so that rank 0 hears of hosts and not of ranks.

It takes the others' receipts, writes the pieces of the manifest that tell of their files, reads them back,
and tells rank 0 their names, sizes and digests. Ranks of rank 0's own host tell rank 0. A host with ranks
that tell all (see ``receipts``), or whose pieces take too many words, has none: its leader passes the
receipts on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import Cut
from checkpointing.format.pieces import Piece, pieces_of
from checkpointing.format.records import Record, Table
from checkpointing.generations.manifests import read_pieces
from checkpointing.generations.repository import Repository
from checkpointing.saving.publishing.inbox import READ, WRITTEN, Inbox
from checkpointing.saving.publishing.receipts import decode_receipt, encode_notes
from checkpointing.saving.save import Mailbox, SaveFailed
from checkpointing.stores.contract import StoreError

# A mailbox takes twice as much in one message.
MOST_WORD_BYTES = 2**22
FAILED = b"failed: "
VERIFIED = b"verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host that is led. ``mailbox`` carries what its ranks tell its first one."""

    ranks: range
    mailbox: Mailbox

    @property
    def leader(self) -> int:
        return self.ranks.start


def led_hosts(nodes: Sequence[str]) -> list[range]:
    """Returns the ranks of each node but rank 0's. A node whose ranks don't follow one another is several; a
    rank that is alone needs no leader.
    """
    found, end = [], 0
    for _, run in groupby(nodes):
        ranks = range(end, end := end + len(list(run)))
        if ranks.start and len(ranks) > 1:
            found.append(ranks)
    return found


class Leader:
    def __init__(self, host: Host, repository: Repository, table: Table, deadline_s: float) -> None:
        self._host = host
        self._others = host.ranks[1:]
        self._repository = repository
        self._table = table
        self._deadline_s = deadline_s
        self._pieces: list[Piece] = []
        self.inbox = Inbox(host.mailbox, lambda cut: dict.fromkeys(self._others, ()))

    def written(self, cut: Cut, own: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields what rank 0 is to be told, and as of which rank: the leader's own is the last.

        Raises ``SaveFailed`` if a rank of the host has failed.
        """
        told = {self._host.leader: own}
        for rank in self._others:
            told[rank] = self.inbox.take(cut, WRITTEN, rank, self._deadline_s)
            if told[rank].startswith(FAILED):
                raise SaveFailed(f"rank {rank} {told[rank].decode()}")
        self._pieces = []
        receipts = [decode_receipt(data, cut, rank) for rank, data in told.items()]
        if not (word := self._word(cut, [one for one in receipts if isinstance(one, Record)])):
            yield from reversed(told.items())
        else:
            yield self._host.leader, word

    def _word(self, cut: Cut, records: Sequence[Record]) -> bytes | None:
        """Writes the pieces of all the host's ranks and returns what tells of them; None if none are made."""
        if len(records) < len(self._host.ranks):
            return None
        notes, objects = pieces_of(cut, self._table, records)
        word = encode_notes(cut, notes)
        if len(word) > MOST_WORD_BYTES:
            return None
        for name, data in objects.items():
            self._repository.put_file(cut.generation, name, data)
        self._pieces = [note.piece for note in notes]
        return word

    def read(self, cut: Cut, own: bytes) -> bytes:
        """Returns what came of reading back all that the host has written; ``own`` is the leader's file's."""
        for rank in self._host.ranks:
            is_own = rank == self._host.leader
            answer = own if is_own else self.inbox.take(cut, READ, rank, self._deadline_s)
            if answer != VERIFIED:
                prefix = FAILED if answer.startswith(FAILED) else b""
                return prefix + f"rank {rank}: ".encode() + answer.removeprefix(FAILED)
        return self._read_pieces_back(cut)

    def _read_pieces_back(self, cut: Cut) -> bytes:
        try:
            read_pieces(self._repository.place(cut.generation), self._pieces)
        except Corrupt as error:
            return f"corrupt: {error}".encode()
        except StoreError as error:
            return FAILED + str(error).encode()
        return VERIFIED
