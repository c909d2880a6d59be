"""Manifests in pieces in a store: what a save writes, what a rank reads, what damage and malice change."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format import pieces
from checkpointing.format.manifest import IN_PIECES, Manifest, file_name
from checkpointing.format.pieces import in_pieces
from checkpointing.format.reshard import Want, plan
from checkpointing.generations.audit import audit_generations
from checkpointing.generations.manifests import InPieces, opened, with_parts
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.generations.unnamed import Surplus, generation_of
from checkpointing.log.codec import seal, unseal
from checkpointing.log.history import Commit, Generation
from checkpointing.saving.save import SaveFailed
from checkpointing.stores.contract import Buffer
from checkpointing.stores.memory import MemoryStore
from jobs.checkpoints.verification import judge
from tests.unit import layouts
from tests.unit.layouts import Span
from tests.unit.small_generations import RUN, Ranks, content, cut_of, load, part_of

TENSORS = layouts.tensors_of(30)
NUM_RANKS = 200
ROOT = "manifest.json"


class Watched(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.written: list[str] = []

    def put(self, name: str, data: Buffer) -> None:
        self.written.append(name.rpartition("/")[2])
        super().put(name, data)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.read.append(name.rpartition("/")[2])
        return super().get_range(name, start, into)


def begin(store: MemoryStore, *, num_ranks: int = 1) -> tuple[Repository, Ranks]:
    repository = Repository(store, RUN)
    return repository, Ranks(repository, repository.take_over("me"), world_size=num_ranks)


def committed(store: MemoryStore, manifest: Manifest) -> tuple[Repository, Generation]:
    repository = Repository(store, RUN)
    return repository, repository.commit(manifest, term=repository.take_over("me"))


def wide(num_ranks: int = NUM_RANKS) -> Manifest:
    cut = cut_of(10, term=1, number=1, world_size=num_ranks)
    return layouts.generation_of(TENSORS, layouts.rows, num_ranks, cut=cut)


def wants_of(spans: dict[str, Span]) -> list[Want]:
    known = {tensor.name: tensor for tensor in TENSORS}
    return [
        Want(
            tensor=name,
            start=start,
            length=length,
            num_elements=known[name].num_elements,
            dtype=known[name].dtype,
        )
        for name, (start, length) in spans.items()
    ]


def read_by(repository: Repository, found: Generation, wants: Sequence[Want], rank: int) -> Manifest:
    """As a rank reads it that resumes."""
    manifest = opened(repository.stored_manifest(found))
    assert isinstance(manifest, InPieces)
    return with_parts(repository.place(found.name), manifest, wants, rank)


def test_a_small_save_writes_one_object_and_reads_it_with_one_request() -> None:
    store = Watched()
    _, ranks = begin(store, num_ranks=3)
    ranks.save(10)
    beside = [name for name in store.written if name.endswith(".json") and not name[0].isdigit()]
    # The attempt's hint, and one for all three records of the save.
    assert beside == ["hint.json", ROOT, "hint.json"]
    assert store.read.count(ROOT) == 1


def test_a_large_one_has_its_root_written_last_and_all_of_it_counted() -> None:
    store = Watched()
    repository, found = committed(store, wide())
    names = [name for name in store.written if name.startswith(("ranks-", "tensors", ROOT))]
    assert names[-1] == ROOT
    objects = ["ranks-00000.json", "ranks-00064.json", "ranks-00128.json", "ranks-00192.json", "tensors.json"]
    assert sorted(names[:-1]) == objects
    sizes = [len(store.get(name)) for name in store.list(f"runs/{RUN}/gen")]
    manifest = repository.manifest(found)
    assert found.num_bytes == manifest.num_bytes + sum(sizes)


def test_a_rank_reads_the_pieces_of_what_it_needs_and_no_others() -> None:
    store = Watched()
    repository, found = committed(store, wide())
    own = {one.name: layouts.rows(one, 70, NUM_RANKS) for one in TENSORS}
    store.read.clear()
    manifest = read_by(repository, found, wants_of(own), 70)
    assert store.read == [ROOT, "tensors.json", "ranks-00064.json"]
    assert [part.rank for part in manifest.parts] == [70]
    assert manifest.parts[0] == next(part for part in repository.manifest(found).parts if part.rank == 70)


@pytest.mark.parametrize("layout", [layouts.rows, layouts.slices, layouts.shares, layouts.at_random(3)])
@pytest.mark.parametrize("seed", range(5))
def test_what_a_rank_reads_is_as_good_as_all_of_it(layout: layouts.SpanOf, seed: int) -> None:
    """Whatever it wants, at whatever number of ranks."""
    dice = random.Random(seed)
    whole = layouts.generation_of(TENSORS, layout, 130, cut=cut_of(10, term=1, number=1, world_size=130))
    repository, found = committed(MemoryStore(), whole)
    for _ in range(5):
        num_ranks, like = dice.randint(1, 300), dice.choice([layouts.rows, layouts.shares, layouts.slices])
        rank = dice.randrange(num_ranks)
        wants = wants_of({one.name: like(one, rank, num_ranks) for one in TENSORS})
        needed = read_by(repository, found, wants, rank)
        assert plan(needed, wants) == plan(whole, wants)
        own = [part.tensors for part in needed.parts if part.rank == rank]
        assert own == ([tuple(layouts.own_of(rank))] if rank < 130 else [])


@pytest.mark.parametrize("victim", [ROOT, "tensors.json", "ranks-00000.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut short", "longer", "swallowed"])
def test_harm_on_the_way_in_fails_the_verification_and_the_next_save_is_good(
    victim: str, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)

    class Harming(MemoryStore):
        is_done = False

        def put(self, name: str, data: Buffer) -> None:
            found = bytearray(data)
            if name.endswith(victim) and not self.is_done:
                self.is_done = True
                if harm == "swallowed":
                    return
                middle = len(found) // 2
                found[middle] ^= harm == "flipped"
                found = found[:middle] if harm == "cut short" else found
                found += b" " * (harm == "longer")
            super().put(name, bytes(found))

    repository, ranks = begin(Harming(), num_ranks=2)
    with pytest.raises(SaveFailed, match="quarantined, because its manifest was read back"):
        ranks.save(10)
    (first,) = repository.view.generations
    assert first.quarantined is not None and ranks.tally.durable_step is None
    second = ranks.save(20)
    good = [one for one in repository.view.generations if one.is_good]
    assert [one.name for one in good] == [second]
    assert load(repository, good[0]) == content(second, 2)


def test_without_its_root_a_save_never_was_and_the_next_attempt_removes_its_pieces() -> None:
    store = Watched()
    manifest = wide()
    committed(store, manifest)
    folder = f"runs/{RUN}/gen/{manifest.cut.generation}"
    for part in manifest.parts:
        store.put(f"{folder}/{part.file}", b"")
    store.put(f"{folder}/notes.txt", b"not of a save")
    store.delete(f"{folder}/{ROOT}")
    for name in store.list(f"runs/{RUN}/log"):
        store.delete(name)
    store.delete(f"runs/{RUN}/hint.json")
    later = Repository(store, RUN)
    later.lease("next")
    assert later.unnamed() == []
    gone = later.expendable()
    assert len(gone[manifest.cut.generation]) == NUM_RANKS + 5
    later.discard(gone, term=later.view.term)
    assert list(store.list(f"runs/{RUN}/gen")) == [f"{folder}/notes.txt"]


@pytest.mark.parametrize("lost", ["tensors.json", "ranks-00064.json", file_name(3)])
def test_one_that_lacks_a_piece_is_taken_for_whole_by_nobody(lost: str) -> None:
    store = MemoryStore()
    manifest = wide()
    repository, found = committed(store, manifest)
    folder = f"runs/{RUN}/gen/{found.name}"
    for part in manifest.parts:
        store.put(f"{folder}/{part.file}", bytes(part.num_bytes))
    assert audit_generations(repository) == []
    emptied = Repository(MemoryStore(), RUN)
    for name in store.list(f"runs/{RUN}/gen"):
        emptied.store.put(name, store.get(name))
    assert [(one.name, one.num_bytes) for one in emptied.unnamed()] == [(found.name, found.num_bytes)]
    for one in (store, emptied.store):
        one.delete(f"{folder}/{lost}")
    (finding,) = audit_generations(repository)
    assert f"{lost} is gone" in finding.says and finding.is_wrong
    assert emptied.unnamed() == []


def test_retired_ones_leave_no_piece_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
    store = MemoryStore()
    repository = Repository(store, RUN)
    term = repository.take_over("me")
    ranks = Ranks(repository, term, world_size=2, retention=Retention(last=2, best=0))
    saved = [ranks.save(step) for step in range(10, 60, 10)]
    assert {name.split("/")[3] for name in store.list(f"runs/{RUN}/gen")} == set(saved[-2:])


def test_no_more_of_a_piece_is_read_than_the_root_names() -> None:
    """Whoever may write to the store can put a thousand gigabytes there."""

    class Endless(MemoryStore):
        most = 0

        def get_range(self, name: str, start: int, into: memoryview) -> int:
            if not name.endswith("ranks-00064.json"):
                return super().get_range(name, start, into)
            self.most = max(self.most, len(into))
            into[:] = b" " * len(into)
            return len(into)

        def size(self, name: str) -> int:
            return 2**40 if name.endswith("ranks-00064.json") else super().size(name)

    store = Endless()
    repository, found = committed(store, wide())
    with pytest.raises(Corrupt, match=r"ranks-00064.json has 1,099,511,627,776 bytes"):
        repository.manifest(found)
    name = f"runs/{RUN}/gen/{found.name}/ranks-00064.json"
    assert store.most == len(store.get(name)) + 1


def test_a_signature_of_the_root_covers_all_pieces() -> None:
    """Their digests stand in it, so that a piece of another hand is not believed."""
    store = MemoryStore()
    repository, found = committed(store, wide())
    name = f"runs/{RUN}/gen/{found.name}/ranks-00000.json"
    body = json.loads(store.get(name))
    body["ranks"][0][2] = {"canary": "f" * 32}
    store.put(name, json.dumps(body, separators=(",", ":")).encode())
    with pytest.raises(Corrupt, match="not the one that the manifest names"):
        repository.manifest(found)


def test_an_older_version_says_that_it_cannot_read_it() -> None:
    _, found = committed(store := MemoryStore(), wide())
    with pytest.raises(Corrupt, match=f"has schema {IN_PIECES}; this version reads 1"):
        unseal(store.get(f"runs/{RUN}/gen/{found.name}/{ROOT}"))


def test_the_root_of_another_generation_is_not_taken_for_this_one() -> None:
    store = MemoryStore()
    manifest = wide()
    repository, found = committed(store, manifest)
    body = unseal(store.get(f"runs/{RUN}/gen/{found.name}/{ROOT}"), IN_PIECES)
    other = cut_of(20, term=1, number=2, world_size=NUM_RANKS).generation
    for part in manifest.parts:
        store.put(f"runs/{RUN}/gen/{other}/{part.file}", b"")
    for name in list(store.list(f"runs/{RUN}/gen/{found.name}")):
        store.put(name.replace(found.name, other), store.get(name))
    store.put(f"runs/{RUN}/gen/{other}/{ROOT}", seal(body, IN_PIECES))
    repository.refresh()
    assert repository.unnamed() == []


@pytest.mark.parametrize("num_bytes", [10**310, 2**63], ids=["10**310", "2**63"])
def test_a_planted_root_of_impossible_size_ends_no_start_and_gets_into_no_log(num_bytes: int) -> None:
    _, good = committed(store := MemoryStore(), wide(3))
    one = layouts.generation_of(TENSORS, layouts.rows, 1, cut=cut_of(20, term=1, number=2))
    encoded = in_pieces(one)
    root = seal(unseal(encoded.root, IN_PIECES) | {"num_bytes": num_bytes}, IN_PIECES)
    for name in (*encoded.objects, file_name(0)):
        store.put(f"runs/{RUN}/gen/{one.cut.generation}/{name}", b"")
    store.put(f"runs/{RUN}/gen/{one.cut.generation}/{ROOT}", root)
    repository = Repository(store, RUN)
    repository.take_over("me")
    assert repository.surplus == Surplus()
    view = Repository(store, RUN).refresh()
    assert (view.generations, view.num_lost) == ((good,), 0)


@pytest.mark.parametrize("schema", [IN_PIECES + 1, 10**6])
def test_a_manifest_of_a_later_version_is_no_damage(schema: int) -> None:
    """Else an earlier version that meets it would quarantine it for ever."""
    store = MemoryStore()
    repository = Repository(store, RUN)
    term, cut = repository.take_over("me"), cut_of(10, term=1, number=1)
    data = seal({"nobody": "knows"}, schema)
    store.put(f"runs/{RUN}/gen/{cut.generation}/{ROOT}", data)
    found = generation_of(cut, 7, data, 0.0)
    repository.append(Commit(generation=found), term=term)
    why = f"its manifest has schema {schema}, .* go on with the version that saved it"
    for read in (repository.manifest, repository.stored_manifest):
        with pytest.raises(Unfit, match=why):
            read(found)
    (finding,) = audit_generations(repository)
    assert re.search(why, finding.says)
    (verdict,) = judge(repository, [found])
    assert verdict.problem is not None and re.search(why, verdict.problem) and not verdict.is_corrupt
    store.put(f"runs/{RUN}/gen/{cut.generation}/{ROOT}", data[:-1])
    with pytest.raises(Corrupt, match="not the one that was committed"):
        repository.stored_manifest(found)


def test_the_parts_of_a_small_one_are_as_they_were() -> None:
    cut = cut_of(10, term=1, number=1, world_size=2)
    manifest = Manifest(cut=cut, parts=tuple(part_of(cut, rank) for rank in range(2)))
    repository, found = committed(MemoryStore(), manifest)
    assert repository.manifest(found) == manifest


def test_pieces_of_another_hand_that_leave_gaps_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pieces, "check_holdings", lambda *_: None)
        patch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
        gaps = layouts.generation_of(TENSORS, layouts.rows, 4)
        parts = (replace(gaps.parts[0], shards=gaps.parts[0].shards[1:]), *gaps.parts[1:])
        repository, found = committed(MemoryStore(), replace(gaps, parts=parts))
    with pytest.raises(Corrupt, match="gaps or overlap"):
        repository.manifest(found, with_shards=False)
