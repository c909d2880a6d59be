"""A manifest in pieces says the same as one of one object, whatever the ranks' layout, and is believed only
within limits.
"""

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.errors import Corrupt
from checkpointing.format import pieces
from checkpointing.format.manifest import (
    IN_PIECES,
    Manifest,
    Shard,
    TensorInfo,
    TooLargeToRead,
    check,
    decode_manifest,
    encode_manifest,
)
from checkpointing.format.pieces import (
    Encoded,
    Root,
    decode_piece,
    decode_root,
    decode_table,
    in_pieces,
    joined,
    needed,
)
from checkpointing.format.records import Table, check_records, file_part_of
from checkpointing.format.reshard import Want, plan
from checkpointing.format.splits import Split
from checkpointing.log.codec import seal, unseal
from tests.unit import layouts

TENSORS = layouts.tensors_of(40)
LAYOUTS: dict[str, layouts.SpanOf] = {
    "rows": layouts.rows,
    "slices": layouts.slices,
    "shares": layouts.shares,
    "one rank has all": layouts.on_rank_0,
    "in a row": layouts.in_a_row(TENSORS),
    "at random": layouts.at_random(7),
}


def of_copies(num_splits: int) -> layouts.SpanOf:
    """Rows, each shared by the ranks that hold a copy of them."""

    def span(tensor: TensorInfo, rank: int, num_ranks: int) -> layouts.Span:
        start, length = layouts.rows(tensor, rank % num_splits, num_splits)
        share, copies = rank // num_splits, num_ranks // num_splits
        first, last = (length * place // copies for place in (share, share + 1))
        return start + first, last - first

    return span


def opened(encoded: Encoded) -> tuple[Root, Table]:
    root = decode_root(encoded.root)
    return root, decode_table(root, encoded.objects[root.tensors.name])


def whole(encoded: Encoded) -> Manifest:
    root, table = opened(encoded)
    records = [one for piece in root.pieces for one in decode_piece(piece, encoded.objects[piece.ref.name])]
    check_records(root.cut, table, records)
    parts = tuple(file_part_of(table, record) for record in records)
    return Manifest(cut=root.cut, parts=parts, shared=table.tensors)


def meaning(manifest: Manifest) -> object:
    """What a reader can tell of it. A shard without elements says nothing."""

    def place(shard: Shard) -> tuple[str, int, int, int]:
        return shard.tensor, shard.start, shard.length, shard.offset

    files = [
        (part.rank, part.file, part.num_bytes, part.chunks, part.state,
         sorted(place(shard) for shard in part.shards if shard.length))
        for part in manifest.parts
    ]  # fmt: skip
    return manifest.cut, manifest.tensors, files


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 65, 130])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_says_the_same_as_one_of_one_object(layout: str, num_ranks: int) -> None:
    manifest = layouts.generation_of(TENSORS, LAYOUTS[layout], num_ranks)
    assert meaning(whole(in_pieces(manifest))) == meaning(manifest)


@pytest.mark.parametrize("gap", [0, 3])
def test_files_with_gaps_and_ranks_that_share_copies_say_the_same(gap: int) -> None:
    cut = replace(layouts.cut_of(10, term=1, number=1, world_size=12), state={"ranks_per_copy": 4})
    manifest = layouts.generation_of(TENSORS, of_copies(4), 12, cut=cut, gap=gap)
    encoded = in_pieces(manifest)
    assert meaning(whole(encoded)) == meaning(manifest)
    (piece,) = decode_root(encoded.root).pieces
    assert piece.split == (None if gap else Split(is_by_rows=True, num_splits=4, num_shares=3))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=6),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_so_do_random_ones(num_ranks: int, shapes: list[list[int]], seed: int, is_shuffled: bool) -> None:
    dice = random.Random(seed)
    tensors = [
        TensorInfo(name=f"t{number}", dtype=dice.choice(["F32", "BF16", "U8"]), shape=tuple(shape))
        for number, shape in enumerate(shapes)
    ]
    spans = {one.name: dice.choice([*list(LAYOUTS.values())[:4], layouts.at_random(seed)]) for one in tensors}
    manifest = layouts.generation_of(
        tensors, lambda one, rank, num_ranks: spans[one.name](one, rank, num_ranks), num_ranks
    )
    if is_shuffled:
        # A rank that lists its tensors in an order of its own, or lacks those of which it has nothing.
        mixed = dice.choice(manifest.parts)
        own = {shard.tensor for shard in mixed.shards if shard.length}
        listed = [one for one in mixed.tensors if one.name in own]
        other = replace(mixed, tensors=tuple(dice.sample(listed, len(listed))))
        other = replace(
            other, shards=tuple(one for one in dice.sample(mixed.shards, len(mixed.shards)) if one.length)
        )
        parts = tuple(other if part is mixed else part for part in manifest.parts)
        known = {one.name for part in parts for one in part.tensors}
        if known == set(manifest.tensors):
            manifest = Manifest(cut=manifest.cut, parts=parts)
            check(manifest)
    assert meaning(whole(in_pieces(manifest))) == meaning(manifest)


ENCODED = in_pieces(layouts.generation_of(TENSORS, layouts.at_random(1), 3))
REGULAR = in_pieces(layouts.generation_of(TENSORS, layouts.rows, 3))
GAPS = in_pieces(layouts.generation_of(TENSORS, layouts.rows, 3, gap=3))


def set_in(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    change.__name__ = f"{'.'.join(map(str, path))} = {str(to)[:30]}"
    return change


def changed_root(encoded: Encoded, change: Callable[[dict[str, Any]], None]) -> Encoded:
    body = unseal(encoded.root, IN_PIECES)
    change(body)
    return replace(encoded, root=seal(body, IN_PIECES))


def changed_object(encoded: Encoded, name: str, change: Callable[[dict[str, Any]], None]) -> Encoded:
    """With the size and the digest in the root made right, as whoever writes all of it can make them."""
    body = json.loads(encoded.objects[name])
    change(body)
    data = json.dumps(body).encode()
    ours = [len(data), hashlib.sha256(data).hexdigest()]

    def fit(root: dict[str, Any]) -> None:
        if name == "tensors.json":
            root["tensors"] = ours
        else:
            root["pieces"][0][2:4] = ours

    fitting = changed_root(encoded, fit)
    return replace(fitting, objects={**encoded.objects, name: data})


@pytest.mark.parametrize(
    "change",
    [
        set_in("cut", "world_size", to=4),
        set_in("cut", "world_size", to=2**40),
        set_in("cut", "generation", to="../x"),
        set_in("cut", to=None),
        set_in("num_bytes", to=-1),
        set_in("num_bytes", to="1"),
        set_in("num_bytes", to=10**310),
        set_in("num_bytes", to=2**63),
        set_in("num_bytes", to=3 * 2**44 + 1),
        set_in("tensors", to=["../../etc/passwd", 1, "0" * 64]),
        set_in("tensors", 0, to=2**40),
        set_in("tensors", 0, to=-1),
        set_in("tensors", 1, to="../x"),
        set_in("tensors", 1, to=7),
        set_in("pieces", to=[]),
        set_in("pieces", to={}),
        set_in("pieces", 0, to=[]),
        set_in("pieces", 0, 0, to=1),
        set_in("pieces", 0, 0, to="../x"),
        set_in("pieces", 0, 1, to=0),
        set_in("pieces", 0, 1, to=2),
        set_in("pieces", 0, 1, to=10**30),
        set_in("pieces", 0, 2, to=2**28),
        set_in("pieces", 0, 2, to=None),
        set_in("pieces", 0, 3, to="0" * 63),
        set_in("pieces", 0, 4, to=1),
        set_in("pieces", 0, 4, to=-1),
        set_in("pieces", 0, 5, to=[[0]]),
        set_in("pieces", 0, 5, to=[[-1, 2]]),
        set_in("pieces", 0, 5, to=[[0, 2**63]]),
        set_in("pieces", 0, 5, to=[[0, 1]] * 17),
        set_in("splits", to=[[True, 0, 1]]),
        set_in("splits", to=[[True, 2**40, 1]]),
        set_in("splits", to=[[True, 2, 2]]),
        set_in("splits", to=[[True, 3, 1]] * 17),
        set_in("splits", to=[[1, 3, 1]]),
        set_in("splits", to=[[True, 3]]),
        set_in("splits", to=7),
    ],
    ids=lambda change: change.__name__,
)
def test_a_root_that_claims_the_impossible_is_corrupt_though_its_digest_fits(
    change: Callable[[dict[str, Any]], None],
) -> None:
    with pytest.raises(Corrupt):
        decode_root(changed_root(REGULAR, change).root)


@pytest.mark.parametrize(
    "change",
    [
        set_in("tensors", 0, 0, to="param/1"),
        set_in("tensors", 0, 0, to=7),
        set_in("tensors", 0, 1, to="F7"),
        set_in("tensors", 0, 2, to=[-1]),
        set_in("tensors", 0, 2, to=[2] * 10**5),
        set_in("tensors", 0, 2, to=[2**32, 2**32]),
        set_in("tensors", 0, 2, to=[0, 2**63]),
        set_in("tensors", 0, to=[]),
        set_in("tensors", to=7),
        set_in("each", to=[["x"]]),
    ],
    ids=lambda change: change.__name__,
)
def test_so_are_tensors(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(Corrupt):
        opened(changed_object(REGULAR, "tensors.json", change))


def test_so_are_more_tensors_of_single_ranks_than_a_reader_has_room_for() -> None:
    """A few bytes name one for each of many ranks, and a reader makes an object of each."""
    root = decode_root(REGULAR.root)
    root = replace(root, cut=replace(root.cut, world_size=2**16))
    for num_each, problem in (16, None), (17, "1114112 tensors of single ranks"):
        rows = [[f"a{number}", "U8", [1]] for number in range(num_each)]
        data = json.dumps({"tensors": [], "each": rows}).encode()
        digest = hashlib.sha256(data).hexdigest()
        ref = replace(root.tensors, num_bytes=len(data), sha256=digest)
        with pytest.raises(Corrupt, match=problem) if problem else nullcontext():
            decode_table(replace(root, tensors=ref), data)


def test_nor_are_so_many_written(monkeypatch: pytest.MonkeyPatch) -> None:
    regular = layouts.generation_of(TENSORS, layouts.rows, 3)
    monkeypatch.setattr(pieces, "_MOST_OWN", 6)
    assert in_pieces(regular) == REGULAR
    monkeypatch.setattr(pieces, "_MOST_OWN", 5)
    with pytest.raises(Corrupt, match="6 tensors of single ranks"):
        in_pieces(regular)


@pytest.mark.parametrize("encoded", [ENCODED, REGULAR], ids=["by exception", "by rule"])
@pytest.mark.parametrize(
    "change",
    [
        set_in("ranks", to=[]),
        set_in("ranks", to=7),
        set_in("ranks", 1, to=[]),
        set_in("ranks", 1, 0, to=-1),
        set_in("ranks", 1, 0, to=10**30),
        set_in("ranks", 1, 0, to=9 * 2**20),
        set_in("ranks", 1, 1, to="0" * 31),
        set_in("ranks", 1, 1, to="x" * 32),
        set_in("ranks", 1, 1, to=7),
        set_in("ranks", 1, 2, to=7),
        set_in("ranks", 1, 3, to=None),
        set_in("ranks", 1, 3, to=-1),
        set_in("ranks", 1, 3, to=8192),
        set_in("ranks", 1, 3, to=0),
        set_in("ranks", 1, 4, to=7),
        set_in("ranks", 1, 5, to=[[0, 0, 10**9]]),
        set_in("ranks", 1, 5, to=[[0, -1, 2]]),
        set_in("ranks", 1, 5, to=[[0, 0, 2.5]]),
        set_in("ranks", 1, 5, to=[[10**6, 0, 1]]),
        set_in("ranks", 1, 5, to=[[0, 0]]),
        set_in("ranks", 1, 5, to=7),
    ],
    ids=lambda change: change.__name__,
)
def test_so_are_pieces(change: Callable[[dict[str, Any]], None], encoded: Encoded) -> None:
    with pytest.raises(Corrupt):
        whole(changed_object(encoded, "ranks-00000.json", change))


@pytest.mark.parametrize(
    "harmed",
    [
        changed_root(REGULAR, set_in("pieces", 0, 4, to="x" * 10**5)),
        changed_object(REGULAR, "tensors.json", set_in("tensors", 0, 1, to="x" * 10**5)),
    ],
    ids=["root", "tensors"],
)
def test_what_is_said_of_it_is_short_whatever_it_claims(harmed: Encoded) -> None:
    """It gets into the log with the quarantine, and no reader takes a record of any size."""
    with pytest.raises(Corrupt) as refused:
        whole(harmed)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("encoded", [ENCODED, REGULAR, GAPS], ids=["by exception", "by rule", "with gaps"])
def test_a_file_with_room_for_less_or_more_than_its_rank_has_is_refused_without_a_look_at_its_shards(
    encoded: Encoded,
) -> None:
    """A save is verified without them, and a restart looks at them."""
    root, table = opened(encoded)
    records = decode_piece(root.pieces[0], encoded.objects["ranks-00000.json"])
    check_records(root.cut, table, records)
    for rank, record in enumerate(records):
        # One with gaps may end in one.
        for change in (8 - record.num_bytes, -4, *([1] if record.base is not None else [])):
            other = replace(record, num_bytes=record.num_bytes + change)
            harmed = [*records[:rank], other, *records[rank + 1 :]]
            with pytest.raises(Corrupt, match=f"rank-0000{rank}.safetensors"):
                check_records(root.cut, table, harmed)
            with pytest.raises(Corrupt, match=f"rank-0000{rank}.safetensors"):
                joined(root.cut, table, harmed)


@pytest.mark.parametrize("name", ["tensors.json", "ranks-00000.json"])
@given(st.integers(0, 100_000), st.integers(0, 7))
@settings(max_examples=30)
def test_a_flipped_bit_in_any_object_is_noticed(name: str, place: int, bit: int) -> None:
    data = bytearray(ENCODED.objects[name])
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Corrupt, match="not the one that the manifest names"):
        whole(replace(ENCODED, objects={**ENCODED.objects, name: bytes(data)}))


@pytest.mark.parametrize("drop", ["a rank", "an exception"])
def test_records_that_leave_gaps_are_neither_written_nor_read(drop: str) -> None:
    root, table = opened(ENCODED)
    records = decode_piece(root.pieces[0], ENCODED.objects["ranks-00000.json"])
    harmed = records[:2] if drop == "a rank" else [replace(records[0], exceptions=()), *records[1:]]
    with pytest.raises(Corrupt):
        check_records(root.cut, table, harmed)
    with pytest.raises(Corrupt):
        joined(root.cut, table, harmed)


def test_ranks_that_follow_two_rules_at_once_leave_gaps() -> None:
    root, table = opened(REGULAR)
    records = decode_piece(root.pieces[0], REGULAR.objects["ranks-00000.json"])
    other = replace(records[1], split=Split(is_by_rows=True, num_splits=2, num_shares=1))
    with pytest.raises(Corrupt, match="gaps or overlap"):
        check_records(root.cut, table, [records[0], other, records[2]])


def test_what_a_reader_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = layouts.generation_of(TENSORS, layouts.rows, 3)
    with_log = in_pieces(manifest).of_log("0" * 16)
    total = len(with_log.root) + 73 + with_log.num_bytes_beside
    monkeypatch.setattr(pieces, "MOST_MANIFEST_BYTES", total)
    decode_root(in_pieces(manifest).root)
    monkeypatch.setattr(pieces, "MOST_MANIFEST_BYTES", total - 1)
    with pytest.raises(
        TooLargeToRead, match=rf"has {total:,} bytes, and a restart reads at most {total - 1:,}"
    ):
        in_pieces(manifest)


def test_the_form_of_one_object_is_not_taken_for_one_in_pieces_nor_the_reverse() -> None:
    with pytest.raises(Corrupt, match="has schema 2"):
        decode_manifest(ENCODED.root)
    with pytest.raises(Corrupt, match="has schema 1"):
        decode_root(encode_manifest(layouts.generation_of(TENSORS, layouts.rows, 3)))


@pytest.mark.parametrize(
    "split",
    [
        Split(is_by_rows=True, num_splits=7, num_shares=1),
        Split(is_by_rows=False, num_splits=7, num_shares=1),
        Split(is_by_rows=False, num_splits=1, num_shares=11),
        Split(is_by_rows=True, num_splits=3, num_shares=4),
    ],
)
def test_the_ranks_that_a_rule_names_are_those_whose_spans_overlap(split: Split) -> None:
    dice = random.Random(4)
    for tensor in TENSORS:
        spans = [split.span(tensor, rank) for rank in range(split.num_ranks + 2)]
        assert sum(length for _, length in spans) == tensor.num_elements
        assert [length for _, length in spans[split.num_ranks :]] == [0, 0]
        for _ in range(20):
            start, end = sorted(dice.randint(0, tensor.num_elements) for _ in range(2))
            overlapping = {
                rank
                for rank, (first, length) in enumerate(spans)
                if max(first, start) < min(first + length, end)
            }
            named = list(split.ranks(tensor, start, end))
            assert overlapping <= set(named) and len(named) == len(set(named))
            # A share without elements between them may be named too.
            assert all(not spans[rank][1] for rank in set(named) - overlapping)


def test_more_than_a_tensor_has_is_looked_for_nowhere() -> None:
    """As by a larger model: that it does not fit, all ranks find alike when they plan."""
    for layout in (layouts.rows, layouts.slices, layouts.shares, layouts.at_random(1)):
        root, table = opened(in_pieces(layouts.generation_of(TENSORS, layout, 20)))
        for tensor in table.tensors:
            count = tensor.num_elements
            wanted = [(tensor.name, start, count + 7) for start in (0, count // 2, count, count + 1)]
            assert needed(root, table, wanted, 20).pieces == []
            assert needed(root, table, [(tensor.name, 0, count)], 20).pieces or not count


def test_many_ranks_with_one_rule_need_few_bytes() -> None:
    """A rank adds its digests and no names; the whole has the tensors once."""
    few, many = (in_pieces(layouts.generation_of(TENSORS, layouts.rows, number)) for number in (64, 256))
    per_rank = (many.num_bytes_beside - few.num_bytes_beside) / 192
    assert per_rank < 200
    assert max(map(len, many.objects.values())) < 64 * 200
    assert len(many.root) - len(few.root) < 3 * 150


def test_an_exception_that_the_root_does_not_tell_of_is_refused() -> None:
    """A rank that looks for that tensor would not read the piece."""
    hiding = changed_root(ENCODED, set_in("pieces", 0, 5, to=[[0, 5]]))
    root, _ = opened(hiding)
    with pytest.raises(Corrupt, match="no exception of tensor"):
        decode_piece(root.pieces[0], hiding.objects["ranks-00000.json"])


def test_a_shard_that_ends_behind_its_tensor_is_refused() -> None:
    root, table = opened(ENCODED)
    record, *_ = decode_piece(root.pieces[0], ENCODED.objects["ranks-00000.json"])
    outside = replace(record, base=None, split=None, exceptions=((0, table.tensors[0].num_elements, 1, 0),))
    with pytest.raises(Corrupt, match="elements of param/0"):
        file_part_of(table, outside)


def test_parts_that_lack_the_middle_of_what_is_wanted_are_not_planned_with() -> None:
    manifest = layouts.generation_of(TENSORS, layouts.shares, 3)
    tensor = max(TENSORS, key=lambda one: one.num_elements)
    want = Want(
        tensor=tensor.name,
        start=0,
        length=tensor.num_elements,
        num_elements=tensor.num_elements,
        dtype=tensor.dtype,
    )
    assert sorted(plan(manifest, [want])) == [0, 1, 2]
    for without in range(3):
        parts = tuple(part for part in manifest.parts if part.rank != without)
        with pytest.raises(Corrupt, match=f"{tensor.name}: "):
            plan(replace(manifest, parts=parts), [want])
