"""What ranks tell rank 0 of their files: no names that rank 0 knows, and the same manifest as with them."""

from dataclasses import replace

import pytest

from checkpointing.errors import Corrupt
from checkpointing.format import pieces
from checkpointing.format.manifest import (
    IN_PIECES,
    FilePart,
    Manifest,
    TensorInfo,
    decode_manifest,
    encode_part,
)
from checkpointing.format.pieces import Encoded, in_pieces
from checkpointing.format.records import Record, Table, table_of
from checkpointing.generations.manifests import encoded
from checkpointing.generations.repository import Repository
from checkpointing.log.codec import seal, unseal
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.publishing.receipts import decode_receipt, encode_receipt, merged
from checkpointing.saving.save import Tally
from checkpointing.stores.memory import MemoryStore
from tests.unit import layouts
from tests.unit.generations.test_pieces import meaning, whole
from tests.unit.small_generations import RUN, Letters, content, cut_of, load, part_of, save_of

TENSORS = layouts.tensors_of(60)
NUM_RANKS = 24
LARGE = layouts.generation_of(
    TENSORS, layouts.rows, NUM_RANKS, cut=cut_of(10, term=1, number=1, world_size=NUM_RANKS)
)
TABLE = table_of(LARGE.parts[:1])
MORE = TensorInfo(name="param/more", dtype="F32", shape=(NUM_RANKS, 3))


def told(manifest: Manifest, table: Table | None = TABLE) -> list[bytes]:
    return [encode_receipt(manifest.cut, part, table) for part in manifest.parts]


def joined_again(manifest: Manifest, receipts: list[bytes], table: Table | None = TABLE) -> Encoded:
    found = [decode_receipt(data, manifest.cut, rank) for rank, data in enumerate(receipts)]
    made = merged(manifest.cut, found, table)
    return encoded(made, None) if isinstance(made, Manifest) else made


def meaning_of(made: Encoded) -> object:
    return meaning(whole(made) if made.objects else decode_manifest(made.root))


def with_more(part: FilePart) -> FilePart:
    """Behind all others, so that nothing else moves."""
    (only,) = layouts.part(part.rank, [(MORE, (3 * part.rank, 3))], base=part.num_bytes).shards
    num_bytes = part.num_bytes + 12
    return replace(part, tensors=(*part.tensors, MORE), shards=(*part.shards, only), num_bytes=num_bytes)


def test_a_receipt_has_no_names_and_the_manifest_is_the_same() -> None:
    receipts = told(LARGE)
    assert not any(b"param/" in data for data in receipts)
    assert max(map(len, receipts)) < 400 < min(len(encode_part(LARGE.cut, part)) for part in LARGE.parts)
    assert joined_again(LARGE, receipts) == in_pieces(LARGE)


@pytest.mark.parametrize("layout", [layouts.slices, layouts.in_a_row(TENSORS), layouts.at_random(5)])
def test_so_it_is_whatever_the_layout(layout: layouts.SpanOf) -> None:
    manifest = layouts.generation_of(TENSORS, layout, NUM_RANKS, cut=LARGE.cut)
    assert meaning_of(joined_again(manifest, told(manifest))) == meaning(manifest)


def test_small_saves_and_those_of_whom_nothing_was_told_tell_all() -> None:
    cut = cut_of(10, term=1, number=1, world_size=3)
    small = layouts.generation_of(TENSORS[:4], layouts.rows, 3, cut=cut)
    for manifest, table in ((small, table_of(small.parts[:1])), (LARGE, None)):
        receipts = told(manifest, table)
        assert receipts == [encode_part(manifest.cut, part) for part in manifest.parts]
        assert meaning_of(joined_again(manifest, receipts, table)) == meaning(manifest)


def test_ranks_whose_tensors_are_not_as_they_were_tell_all_and_the_others_need_not() -> None:
    """As a loop of the user's own may add a tensor on some ranks, or drop one on all."""
    every = replace(LARGE, parts=tuple(map(with_more, LARGE.parts)))
    receipts = told(every)
    assert receipts == [encode_part(every.cut, part) for part in every.parts]
    alone = replace(MORE, shape=(3,))
    last = with_more(LARGE.parts[0])
    last = replace(
        last,
        tensors=(*LARGE.parts[0].tensors, alone),
        shards=(*last.shards[:-1], replace(last.shards[-1], start=0)),
    )
    of_rank_0 = replace(LARGE, parts=(last, *LARGE.parts[1:]))
    receipts = told(of_rank_0)
    assert [b"param/" in data for data in receipts] == [True] + [False] * (NUM_RANKS - 1)
    assert meaning_of(joined_again(of_rank_0, receipts)) == meaning(of_rank_0)


def with_only(part: FilePart, tensor: TensorInfo) -> FilePart:
    """All of ``tensor`` behind all others."""
    size = 4 * tensor.num_elements
    (only,) = layouts.part(part.rank, [(tensor, (0, tensor.num_elements))], base=part.num_bytes).shards
    return replace(
        part,
        tensors=(*part.tensors, tensor),
        shards=(*part.shards, only),
        num_bytes=part.num_bytes + size,
    )


def test_a_tensor_without_elements_is_not_lost_between_ranks_that_tell_all_and_those_that_need_not() -> None:
    """Whoever resumes wants it, and would be told that the checkpoint is another model's."""
    empty = TensorInfo(name="param/empty", dtype="F32", shape=(0, 2))
    first, second, *others = LARGE.parts
    first = with_only(first, empty)
    table = table_of([first])
    mixed = replace(LARGE, parts=(first, with_only(second, replace(MORE, shape=(3,))), *others))
    receipts = told(mixed, table)
    assert [b"param/" in data for data in receipts] == [False, True] + [False] * (NUM_RANKS - 2)
    assert meaning_of(joined_again(mixed, receipts, table)) == meaning(mixed)
    # As long as it is: where a rank tells that it has elements now, the others do not gainsay it.
    filled = with_only(LARGE.parts[0], replace(empty, shape=(3, 2)))
    now = replace(LARGE, parts=(filled, second, *others))
    receipts = told(now, table)
    assert [b"param/" in data for data in receipts] == [True] + [False] * (NUM_RANKS - 1)
    assert meaning_of(joined_again(now, receipts, table)) == meaning(now)


def test_a_rank_that_lacks_what_each_has_of_its_own_tells_all() -> None:
    first, *others = LARGE.parts
    held = [(tensor, layouts.rows(tensor, 1, NUM_RANKS)) for tensor in TENSORS]
    mixed = replace(LARGE, parts=(first, layouts.part(1, held), *others[1:]))
    receipts = told(mixed)
    assert [b"param/" in data for data in receipts] == [False, True] + [False] * (NUM_RANKS - 2)
    assert meaning_of(joined_again(mixed, receipts)) == meaning(mixed)


def test_a_tensor_that_nobody_has_any_more_costs_no_save() -> None:
    fewer = layouts.generation_of(TENSORS[1:], layouts.rows, NUM_RANKS, cut=LARGE.cut)
    assert meaning_of(joined_again(fewer, told(fewer))) == meaning(fewer)


def test_receipts_that_leave_gaps_make_no_manifest() -> None:
    receipts = told(LARGE)
    for harmed in (receipts[:-1], [receipts[0], *receipts[:-1]]):
        with pytest.raises(Corrupt):
            joined_again(LARGE, harmed)


def test_a_receipt_for_another_save_or_with_impossible_claims_is_refused() -> None:
    data = told(LARGE)[1]
    with pytest.raises(Corrupt, match="a receipt of"):
        decode_receipt(data, cut_of(20, term=1, number=2, world_size=NUM_RANKS), 1)
    body = unseal(data, IN_PIECES)
    for harm in (
        {"row": []},
        {"row": 7},
        {"split": [True, 0, 1]},
        {"split": [True, 5, 5]},
        {"split": 7},
        {"of": 7},
    ):
        with pytest.raises(Corrupt):
            decode_receipt(seal({**body, **harm}, IN_PIECES), LARGE.cut, 1)
    found = decode_receipt(data, LARGE.cut, 1)
    assert isinstance(found, Record) and found.rank == 1


def test_ranks_publish_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
    posted = []

    class Seen(Letters):
        def post(self, name: str, value: bytes, *, to: int) -> None:
            posted.append(value)
            super().post(name, value, to=to)

    repository, letters, tally = Repository(MemoryStore(), RUN), Seen(), Tally()
    term = repository.take_over("me")
    cut = cut_of(10, term=term, number=1, world_size=3)
    table = table_of([part_of(cut, 0)])
    for rank in (2, 1, 0):
        attempt = SavingAttempt(rank=rank, term=term, deadline_s=0.0, table=table)
        Publisher(repository, letters, attempt, tally).publish(save_of(cut, rank), lambda: None)
    assert not any(b"param/" in value for value in posted)
    (found,) = repository.view.generations
    assert found.is_good and load(repository, found) == content(cut.generation, 3)
