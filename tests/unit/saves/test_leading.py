"""The first rank of a host tells rank 0 of all its ranks: the pieces that it has written."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format import pieces
from checkpointing.format.manifest import IN_PIECES, Cut, FilePart, TooLargeToRead, decode_manifest
from checkpointing.format.pieces import decode_root, in_pieces, pieces_of, rooted
from checkpointing.format.records import Record, records_of, table_of
from checkpointing.format.splits import Split
from checkpointing.generations.audit import audit_generations
from checkpointing.generations.manifests import manifest_bytes
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import seal, unseal
from checkpointing.log.history import Generation
from checkpointing.log.signing import VARIABLE
from checkpointing.saving.publishing import leading
from checkpointing.saving.publishing.leading import FAILED, Host, led_hosts
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.publishing.receipts import (
    decode_notes,
    decode_receipt,
    encode_notes,
    encode_receipt,
    merged,
)
from checkpointing.saving.save import Save, SaveFailed, Tally
from checkpointing.stores.bounded import excess_of
from checkpointing.stores.contract import Buffer, StoreError
from checkpointing.stores.memory import MemoryStore
from tests.unit import layouts
from tests.unit.generations.test_pieces import meaning, whole
from tests.unit.small_generations import RUN, TENSOR, Letters, content, cut_of, load, part_of, save_of

WORLD_SIZE = 7
# Rank 0 and rank 1 share a host, and rank 4 is alone.
LED = (range(2, 4), range(5, 7))
LEADERS = [2, 5]


class HarmingStore(MemoryStore):
    """Refuses to take the object ``refused``, takes ``harmed`` with a bit turned, and does not give
    ``unreadable``. ``read`` are the names that were read.
    """

    refused = harmed = unreadable = "no such object"

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.read.append(name.rpartition("/")[2])
        if name.endswith(self.unreadable):
            raise StoreError(f"{name}: no answer")
        return super().get_range(name, start, into)

    def put(self, name: str, data: Buffer) -> None:
        if name.endswith(self.refused):
            raise StoreError(f"{name}: no space left")
        if name.endswith(self.harmed):
            data = bytes([*bytes(data)[:-1], bytes(data)[-1] ^ 1])
        super().put(name, data)


class Cluster:
    """Publishers of all ranks, of whom those on led hosts tell their leader."""

    def __init__(self, *, without_a_table: Sequence[int] = (), deadline_s: float = 0.0) -> None:
        self.tensor = TENSOR
        self.store = HarmingStore()
        self.repository = Repository(self.store, RUN)
        self.term = self.repository.take_over("me")
        self.to_rank_0 = Seen()
        self.hosts = [Host(ranks=ranks, mailbox=Seen()) for ranks in LED]
        table = table_of([part_of(self.cut(1), 0)])
        self.tally = Tally()
        self.publishers = [
            Publisher(
                self.repository,
                self.to_rank_0,
                SavingAttempt(
                    rank=rank,
                    term=self.term,
                    deadline_s=deadline_s,
                    table=None if rank in without_a_table else table,
                    led=LED,
                ),
                self.tally,
                host=next((host for host in self.hosts if rank in host.ranks), None),
            )
            for rank in range(WORLD_SIZE)
        ]

    def cut(self, number: int) -> Cut:
        return cut_of(number * 10, term=self.term, number=number, world_size=WORLD_SIZE)

    def publish(self, number: int, *ranks: int) -> None:
        for rank in ranks:
            with suppress(StoreError, SaveFailed):
                self.publishers[rank].publish(self.share(number, rank), lambda: None)

    def share(self, number: int, rank: int) -> Save:
        """A rank's share of a save, with the tensor named ``tensor``."""
        save = save_of(self.cut(number), rank)
        tensors = tuple(replace(one, name=self.tensor) for one in save.part.tensors)
        shards = tuple(replace(one, tensor=self.tensor) for one in save.part.shards)
        return replace(save, part=replace(save.part, tensors=tensors, shards=shards))

    def save(self, number: int, *, silent: Sequence[int] = ()) -> Generation:
        """Raises what rank 0 met. Ranks publish one after the other, leaders behind those whom they lead."""
        self.publish(number, *(rank for rank in range(WORLD_SIZE - 1, 0, -1) if rank not in silent))
        self.publishers[0].publish(self.share(number, 0), lambda: None)
        return self.repository.view.generations[-1]

    def waiting(self) -> list[str]:
        boxes = [self.to_rank_0, *(host.mailbox for host in self.hosts)]
        return [name for box in boxes if isinstance(box, Letters) for name in box.waiting()]

    def root(self, found: Generation) -> bytes:
        return manifest_bytes(self.repository.place(found.name), found)


class Seen(Letters):
    """Remembers of whom it was told what, and whose word was taken. Refuses ``refused`` unless it tells of a
    failure, and loses ``lost``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, str, int]] = []
        self.taken: list[tuple[int, str, int, float]] = []
        self.discarded: list[str] = []
        self.refused: list[tuple[int, str]] = []
        self.lost: list[tuple[int, str]] = []

    def post(self, name: str, value: bytes, *, to: int) -> None:
        _, rank, what = name.split("/")
        if (int(rank), what) in self.refused and not value.startswith(FAILED):
            raise SaveFailed("too large")
        self.seen.append((int(rank), what, to))
        if (int(rank), what) not in self.lost:
            super().post(name, value, to=to)

    def take(self, name: str, timeout_s: float, *, sender: int) -> bytes | None:
        _, rank, what = name.split("/")
        self.taken.append((int(rank), what, sender, timeout_s))
        return super().take(name, 0.0, sender=sender)

    def discard(self, name: str) -> bool:
        self.discarded.append(name)
        return super().discard(name)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)


@pytest.mark.usefixtures("large")
def test_rank_0_hears_of_each_host_once_and_a_restart_reads_what_the_leaders_have_written() -> None:
    cluster = Cluster()
    found = cluster.save(1)
    assert cluster.store.read.count("ranks-00002.json") == 1
    assert found.is_good and load(cluster.repository, found) == content(found.name, WORLD_SIZE)
    heard = [0, 1, 2, 4, 5]
    assert sorted(cluster.to_rank_0.seen) == [
        (rank, what, 0) for rank in heard for what in ("read", "written")
    ]
    assert [host.mailbox.seen for host in cluster.hosts if isinstance(host.mailbox, Seen)] == [
        [(3, "written", 2), (3, "read", 2)],
        [(6, "written", 5), (6, "read", 5)],
    ]
    assert [(one.first, one.count) for one in decode_root(cluster.root(found)).pieces] == [
        (0, 2),
        (2, 2),
        (4, 1),
        (5, 2),
    ]
    assert cluster.to_rank_0.discarded == []
    assert found.num_bytes == sum(
        cluster.store.size(name) for name in cluster.repository.objects_of(found.name)
    )
    assert cluster.waiting() == []


def test_a_small_save_has_one_object_as_ever() -> None:
    cluster = Cluster()
    found = cluster.save(1)
    assert found.is_good and load(cluster.repository, found) == content(found.name, WORLD_SIZE)
    assert len(decode_manifest(cluster.root(found)).parts) == WORLD_SIZE
    assert sorted({rank for rank, *_ in cluster.to_rank_0.seen}) == list(range(WORLD_SIZE))
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("telling", [1, 6])
def test_where_one_rank_tells_all_no_piece_that_a_leader_has_written_is_written_again(telling: int) -> None:
    """A late write of it may land yet."""
    cluster = Cluster(without_a_table=[telling])
    found = cluster.save(1)
    assert found.is_good and load(cluster.repository, found) == content(found.name, WORLD_SIZE)
    firsts = [piece.first for piece in decode_root(cluster.root(found)).pieces]
    assert not {ranks.start for ranks in LED if telling not in ranks} & {*firsts}
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_where_one_rank_tells_all_and_two_rules_meet_the_manifest_is_one_object() -> None:
    halves = Split(is_by_rows=True, num_splits=2, num_shares=1)
    manifest = layouts.generation_of(
        TENSORS, layouts.rows, NUM_RANKS, cut=cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    )
    assert len(decode_root(in_pieces(manifest, taken={8}).root).pieces) == 1
    with pytest.MonkeyPatch.context() as patch:
        real = pieces.records_of
        patch.setattr(
            pieces,
            "records_of",
            lambda *given: [replace(one, split=halves) if one.rank == 8 else one for one in real(*given)],
        )
        made = in_pieces(manifest, taken={8})
    assert meaning(decode_manifest(made.root)) == meaning(manifest) and not made.objects


def test_no_piece_begins_with_a_rank_that_is_taken() -> None:
    number = 200
    manifest = layouts.generation_of(
        TENSORS[:9], layouts.at_random(3), number, cut=cut_of(10, term=1, number=1, world_size=number)
    )
    assert [one.first for one in decode_root(in_pieces(manifest).root).pieces] == [0, 64, 128, 192]
    made = in_pieces(manifest, taken=range(8, number, 8))
    assert [one.first for one in decode_root(made.root).pieces] == [0, 65, 129, 193]
    assert meaning(whole(made)) == meaning(manifest)


@pytest.mark.usefixtures("large")
def test_where_pieces_take_too_many_words_the_receipts_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "MOST_WORD_BYTES", 10)
    cluster = Cluster()
    found = cluster.save(1)
    assert found.is_good and load(cluster.repository, found) == content(found.name, WORLD_SIZE)
    assert [one.first for one in decode_root(cluster.root(found)).pieces] == [0]
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_where_one_rank_tells_all_a_signed_manifest_is_committed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    cluster = Cluster(without_a_table=[6])
    found = cluster.save(1)
    assert found.is_good and load(cluster.repository, found) == content(found.name, WORLD_SIZE)
    assert cluster.repository.signed_ones([found]) == [found]
    assert audit_generations(cluster.repository) == []


def test_receipts_that_a_leader_passed_on_before_it_failed_are_deleted() -> None:
    cluster = Cluster()
    cluster.to_rank_0.refused = [(2, "written")]
    with pytest.raises(SaveFailed, match="rank 2 failed: too large"):
        cluster.save(1)
    assert (3, "written", 0) in cluster.to_rank_0.seen
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("unreadable", ["00003.safetensors", "00002.safetensors", "ranks-00002.json"])
def test_what_a_store_does_not_give_back_is_no_damage(unreadable: str) -> None:
    cluster = Cluster()
    cluster.store.unreadable = unreadable
    with pytest.raises(SaveFailed, match=f"not verified, because rank 2 failed: .*{unreadable}: no answer"):
        cluster.save(1)
    assert cluster.repository.view.generations[-1].quarantined is None
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_rank_0_reads_its_own_pieces_back_where_leaders_had_written_those_of_an_earlier_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "_RANKS_PER_PIECE", 2)
    cluster = Cluster()
    assert cluster.save(1).is_good
    # Its tensors are others now, so all ranks tell all.
    cluster.tensor = "param/v"
    cluster.store.harmed = "ranks-00002.json"
    with pytest.raises(SaveFailed, match=r"manifest was read back: ranks-00002\.json is not the one"):
        cluster.save(2)
    assert cluster.waiting() == []


def test_rank_0_waits_longer_for_a_leader_and_hears_of_whom_it_passes_on_from_it() -> None:
    cluster = Cluster(deadline_s=10.0)
    assert cluster.save(1).is_good
    taken = {(rank, what): (sender, timeout_s) for rank, what, sender, timeout_s in cluster.to_rank_0.taken}
    assert taken[4, "written"] == (4, 10.0)
    assert taken[3, "written"] == (2, 10.0)
    for what in ("written", "read"):
        sender, timeout_s = taken[2, what]
        assert sender == 2 and timeout_s > 10.0


@pytest.mark.usefixtures("large")
def test_a_leaders_own_damage_is_told_though_a_rank_of_its_host_is_silent() -> None:
    cluster = Cluster()
    cluster.store.harmed = "00002.safetensors"
    mailbox = cluster.hosts[0].mailbox
    assert isinstance(mailbox, Seen)
    mailbox.lost = [(3, "read")]
    with pytest.raises(SaveFailed, match="quarantined, because rank 2 read back: rank 2: corrupt"):
        cluster.save(1)
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("refused", ["00003.safetensors", "00002.safetensors", "ranks-00002.json"])
def test_what_fails_on_a_host_is_told_to_rank_0_and_ends_no_later_save(refused: str) -> None:
    cluster = Cluster()
    cluster.store.refused = refused
    with pytest.raises(SaveFailed, match=rf"rank 2 .*{refused}: no space left"):
        cluster.save(1)
    assert cluster.waiting() == []
    cluster.store.refused = "no such object"
    assert cluster.save(2).is_good
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_a_rank_of_which_its_leader_hears_nothing_is_named() -> None:
    cluster = Cluster()
    with pytest.raises(SaveFailed, match="rank 2 failed: rank 3: nothing written within 0 s"):
        cluster.save(1, silent=[3])
    # It comes late, and nothing of it stays.
    cluster.publish(1, 3)
    assert cluster.save(2).is_good
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_a_leader_that_is_silent_is_named() -> None:
    cluster = Cluster()
    with pytest.raises(SaveFailed, match="rank 5: nothing written"):
        cluster.save(1, silent=[5])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("harmed", "why"),
    [
        ("00003.safetensors", "rank 2 read back: rank 3: corrupt"),
        ("00002.safetensors", "rank 2 read back: rank 2: corrupt"),
        ("ranks-00002.json", "rank 2 read back: corrupt: ranks-00002.json is not the one"),
        ("ranks-00000.json", "manifest was read back: ranks-00000.json is not the one"),
        ("tensors.json", "manifest was read back: tensors.json is not the one"),
        ("manifest.json", "manifest was read back"),
    ],
)
def test_what_no_restart_could_use_is_not_verified(harmed: str, why: str) -> None:
    cluster = Cluster()
    cluster.store.harmed = harmed
    with pytest.raises(SaveFailed, match=f"quarantined, because (its )?{why}"):
        cluster.save(1)
    assert cluster.repository.view.generations[-1].quarantined
    assert cluster.waiting() == []


def test_receipts_that_were_passed_on_for_a_dropped_save_are_deleted() -> None:
    cluster = Cluster()
    with pytest.raises(SaveFailed, match="rank 1: nothing written"):
        cluster.save(1, silent=[1])
    assert cluster.waiting() == []
    # Its host passes them on after rank 0 has dropped the save.
    with pytest.raises(SaveFailed, match="rank 2: nothing written"):
        cluster.save(2, silent=[2, 3])
    cluster.publish(2, 3, 2)
    assert len(cluster.to_rank_0.waiting()) == 3
    cluster.save(3)
    assert cluster.waiting() == []


@pytest.mark.usefixtures("large")
def test_what_others_told_a_leader_that_has_no_share_is_deleted() -> None:
    cluster = Cluster()
    cluster.publishers[2].skip(cluster.cut(1))
    with pytest.raises(SaveFailed, match="rank 2: nothing written"):
        cluster.save(1, silent=[2])
    assert cluster.save(2).is_good
    assert cluster.waiting() == []


def test_which_hosts_are_led() -> None:
    assert led_hosts(["a"]) == led_hosts(["a", "a"]) == led_hosts(["a", "b", "c"]) == []
    assert led_hosts(["a", "a", "b", "b", "b", "c", "d", "d"]) == [range(2, 5), range(6, 8)]
    assert led_hosts(["a", "b", "b", "a", "a"]) == [range(1, 3), range(3, 5)]


TENSORS = layouts.tensors_of(60)
NUM_RANKS = 24
HOSTS = [range(first, first + 8) for first in (0, 8, 16)]


@pytest.mark.parametrize(
    "layout", [layouts.rows, layouts.shares, layouts.slices, layouts.in_a_row(TENSORS), layouts.at_random(5)]
)
def test_the_manifest_says_the_same_as_without_leaders(layout: layouts.SpanOf) -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layout, NUM_RANKS, cut=cut)
    told, objects = _told(cut, manifest.parts)
    made = merged(cut, told, table_of(manifest.parts[:1]))
    assert isinstance(made, pieces.Encoded)
    assert meaning(whole(replace(made, objects=made.objects | objects))) == meaning(manifest)
    assert made.num_bytes_beside == sum(map(len, {**made.objects, **objects}.values()))
    if layout is layouts.rows:
        assert made.num_bytes == in_pieces(manifest).num_bytes


def _told(cut: Cut, parts: Sequence[FilePart]) -> tuple[list[Record | pieces.PieceNote], dict[str, bytes]]:
    """What rank 0 is told, and what the leaders have written."""
    told: list[Record | pieces.PieceNote] = []
    written: dict[str, bytes] = {}
    table = table_of(parts[:1])
    for ranks in HOSTS:
        found = [decode_receipt(encode_receipt(cut, parts[rank], table), cut, rank) for rank in ranks]
        records = [one for one in found if isinstance(one, Record)]
        assert len(records) == len(ranks)
        if not ranks.start:
            told += records
            continue
        notes, objects = pieces_of(cut, table, records)
        written |= objects
        data = encode_notes(cut, notes)
        decoded = decode_notes(data, cut, ranks)
        assert decoded == notes
        told += decoded
    return told, written


def test_where_rank_0_tells_all_the_others_pieces_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where tensors have gone: rank 0 knows it, and the others need not."""
    monkeypatch.setattr(pieces, "_RANKS_PER_PIECE", 8)  # as many as a host has here
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.rows, NUM_RANKS, cut=cut)
    (_, *told), objects = _told(cut, manifest.parts)

    def read(piece: pieces.Piece) -> list[Record]:
        return pieces.decode_piece(piece, objects[piece.ref.name])

    made = merged(cut, [manifest.parts[0], *told], table_of(manifest.parts[:1]), read)
    assert isinstance(made, pieces.Encoded) and not {*made.objects} & {*objects}
    assert meaning(whole(made)) == meaning(manifest)


def test_hosts_that_leave_gaps_make_no_manifest() -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    for layout in (layouts.rows, layouts.at_random(5)):
        manifest = layouts.generation_of(TENSORS, layout, NUM_RANKS, cut=cut)
        told, _ = _told(cut, manifest.parts)
        table = table_of(manifest.parts[:1])
        assert merged(cut, told, table)
        for harmed in (told[:-1], [*told[:-2], told[-1]], [*told, told[-1]]):
            with pytest.raises(Corrupt):
                merged(cut, harmed, table)


def test_what_leaders_have_written_counts_for_what_a_restart_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.rows, NUM_RANKS, cut=cut)
    told, _ = _told(cut, manifest.parts)
    table = table_of(manifest.parts[:1])
    made = merged(cut, told, table)
    assert isinstance(made, pieces.Encoded)
    monkeypatch.setattr(pieces, "MOST_MANIFEST_BYTES", len(made.root) + made.num_bytes_beside - 1)
    with pytest.raises(TooLargeToRead, match="save with fewer ranks"):
        merged(cut, told, table)


def test_a_leader_refuses_a_piece_with_more_values_than_a_restart_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.rows, NUM_RANKS, cut=cut)
    table = table_of(manifest.parts[:1])
    parts = [replace(part, state={"seen": list(range(1000))}) for part in manifest.parts[8:16]]
    records = records_of(cut, table, parts)
    assert pieces_of(cut, table, records)
    monkeypatch.setattr(pieces, "excess_of", partial(excess_of, most_values=1000))
    with pytest.raises(TooLargeToRead, match="keep large lists of your state in tensors"):
        pieces_of(cut, table, records)


def test_rank_0_refuses_more_tensors_than_a_restart_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.rows, NUM_RANKS, cut=cut)
    table = table_of(manifest.parts)
    notes, objects = pieces_of(cut, table, records_of(cut, table, manifest.parts))
    assert rooted(cut, table, notes, objects)
    monkeypatch.setattr(pieces, "excess_of", partial(excess_of, most_values=10))
    with pytest.raises(TooLargeToRead, match="keep large lists of your state in tensors"):
        rooted(cut, table, notes, objects)


def test_a_leader_refuses_a_part_of_a_tensor_that_nobody_has_told_of() -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.rows, NUM_RANKS, cut=cut)
    table = table_of(manifest.parts)
    record = records_of(cut, table, manifest.parts[8:9])[0]
    unknown = (len(table.tensors) + len(table.each), 0, 1)
    with pytest.raises(Corrupt, match="own tensors of rank 8"):
        pieces_of(cut, table, [replace(record, exceptions=(unknown,))])


def test_what_no_leader_says_is_refused() -> None:
    cut = cut_of(10, term=1, number=1, world_size=NUM_RANKS)
    manifest = layouts.generation_of(TENSORS, layouts.at_random(5), NUM_RANKS, cut=cut)
    notes = [one for one in _told(cut, manifest.parts)[0] if isinstance(one, pieces.PieceNote)][:1]
    data = encode_notes(cut, notes)
    assert decode_notes(data, cut, range(8, 16)) == notes
    receipt = encode_receipt(cut, manifest.parts[8], table_of(manifest.parts[:1]))
    assert decode_notes(receipt, cut, range(8, 16)) is None
    for ranks in (range(8, 17), range(16, 24)):
        with pytest.raises(Corrupt, match="from the leader of rank"):
            decode_notes(data, cut, ranks)
    with pytest.raises(Corrupt, match="pieces of"):
        decode_notes(data, cut_of(20, term=1, number=2, world_size=NUM_RANKS), range(8, 16))
    body = unseal(data, IN_PIECES)
    row = body["pieces"][0]
    split = [True, NUM_RANKS, 1]
    assert Split(is_by_rows=True, num_splits=NUM_RANKS, num_shares=1).num_ranks == NUM_RANKS
    for place, harm in [
        (0, -1), (0, 9), (1, 0), (1, 7), (1, True), (2, -1), (2, 2**40), (3, "no digest"), (4, [[0]]),
        (4, [[0, -1]]), (5, [True, 0, 1]), (5, [True, NUM_RANKS + 1, 1]), (5, 7), (6, -1), (6, 2**70), (7, 7),
        (7, [[7, False, []]]), (7, [[16, False, []]]), (7, [[8, False, []]] * 2), (7, [[8, False, [[0, 1]]]]),
        (7, [[8, False, [[0, 1, -1]]]]), (7, [["8", False, []]]),
    ]:  # fmt: skip
        changed = [*row[:place], harm, *row[place + 1 :]]
        with pytest.raises(Corrupt):
            decode_notes(seal({**body, "pieces": [changed]}, IN_PIECES), cut, range(8, 16))
    for pieces_told in (7, [], [7], [row, row], [row[:-1]], [[*row[:5], split]]):
        with pytest.raises(Corrupt):
            decode_notes(seal({**body, "pieces": pieces_told}, IN_PIECES), cut, range(8, 16))
