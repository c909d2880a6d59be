"""What a manifest may claim: it comes back as it was, and nothing absurd is believed or allocated."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import Corrupt
from checkpointing.format.manifest import (
    CHUNK_BYTES,
    DTYPE_BYTES,
    Manifest,
    Shard,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
    manifest_of,
)
from checkpointing.log.codec import seal, unseal
from tests.unit.small_generations import cut_of, part_of

CUT = cut_of(10, term=2, number=3, world_size=3)
PARTS = tuple(part_of(CUT, rank) for rank in range(3))
MANIFEST = manifest_of(CUT, PARTS)

Change = Callable[[dict[str, Any]], object]


def set_in(*path: str | int, to: object) -> Change:
    def change(body: dict[str, Any]) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    change.__name__ = f"{'.'.join(map(str, path))} = {str(to)[:30]}"
    return change


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
states = st.dictionaries(st.text(max_size=5), values, max_size=3)


@given(states, states, st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_encoded_comes_back(
    state: dict[str, Any], own: dict[str, Any], metrics: dict[str, float]
) -> None:
    cut = replace(CUT, state=state, metrics=metrics, epoch_end=2)
    parts = tuple(replace(part, state=own) for part in PARTS)
    manifest = Manifest(cut=cut, parts=parts)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert decode_part(encode_part(cut, parts[1])) == (cut, parts[1])


def test_the_order_in_which_ranks_report_makes_no_difference() -> None:
    assert manifest_of(CUT, reversed(PARTS)) == MANIFEST


@pytest.mark.parametrize(
    "parts",
    [PARTS[:2], PARTS[1:], (*PARTS, PARTS[0]), (PARTS[0], PARTS[1], PARTS[1]), ()],
    ids=["the last is missing", "the first is missing", "one too many", "one twice", "none"],
)
def test_parts_that_are_not_one_of_each_rank_are_no_generation(parts: tuple[Any, ...]) -> None:
    with pytest.raises(Corrupt):
        manifest_of(CUT, parts)


ABSURD = [
    set_in("cut", "world_size", to=0),
    set_in("cut", "world_size", to=-1),
    set_in("cut", "world_size", to=2),
    set_in("cut", "world_size", to=10**9),
    set_in("cut", "world_size", to=True),
    set_in("cut", "world_size", to="3"),
    set_in("cut", "world_size", to=None),
    set_in("cut", "step", to=-1),
    set_in("cut", "term", to="2"),
    set_in("cut", "number", to=1.5),
    set_in("cut", "generation", to="../../../etc"),
    set_in("cut", "generation", to="/etc"),
    set_in("cut", "generation", to="a/b"),
    set_in("cut", "generation", to=""),
    set_in("cut", "generation", to=7),
    set_in("cut", "more", to=1),
    set_in("cut", "metrics", to={"val_loss": "x"}),
    set_in("cut", "metrics", to=7),
    set_in("cut", "created_s", to="x"),
    set_in("cut", "created_s", to=1e300),
    set_in("cut", "epoch_end", to="x"),
    set_in("cut", "state", to=7),
    set_in("cut", "strategy", to=7),
    set_in("cut", to=None),
    set_in("parts", 1, "rank", to=0),
    set_in("parts", 1, "rank", to=-1),
    set_in("parts", 1, "rank", to=10**30),
    set_in("parts", 1, "file", to="../rank-00001.safetensors"),
    set_in("parts", 1, "file", to="/etc/passwd"),
    set_in("parts", 1, "file", to="rank-00000.safetensors"),
    set_in("parts", 1, "file", to=None),
    set_in("parts", 1, "num_bytes", to=-1),
    set_in("parts", 1, "num_bytes", to=10**18),
    set_in("parts", 1, "num_bytes", to=3 * CHUNK_BYTES),
    set_in("parts", 1, "num_bytes", to=30.5),
    set_in("parts", 1, "chunks", to=[]),
    set_in("parts", 1, "chunks", to=["0"] * 2),
    set_in("parts", 1, "chunks", to=None),
    set_in("parts", 1, "tensors", to=[]),
    set_in("parts", 1, "tensors", to=[{"name": "param/w"}]),
    set_in("parts", 1, "tensors", 0, "name", to=["param/w"]),
    set_in("parts", 1, "tensors", 0, "name", to="param/v"),
    set_in("parts", 1, "tensors", 0, "dtype", to="F64"),
    set_in("parts", 1, "tensors", 0, "dtype", to="F32"),
    set_in("parts", 1, "tensors", 0, "dtype", to={}),
    set_in("parts", 1, "tensors", 0, "shape", to=[10**18]),
    set_in("parts", 1, "tensors", 0, "shape", to=[-23, -3]),
    set_in("parts", 1, "tensors", 0, "shape", to=["69"]),
    set_in("parts", 1, "tensors", 0, "shape", to=[2] * 10**5),
    set_in("parts", 1, "tensors", 0, "shape", to=69),
    set_in("parts", 1, "shards", to=[]),
    set_in("parts", 1, "shards", 0, "tensor", to="param/v"),
    set_in("parts", 1, "shards", 0, "tensor", to=[]),
    set_in("parts", 1, "shards", 0, "start", to=22),
    set_in("parts", 1, "shards", 0, "start", to=24),
    set_in("parts", 1, "shards", 0, "start", to=-23),
    set_in("parts", 1, "shards", 0, "start", to=23.0),
    set_in("parts", 1, "shards", 0, "length", to=22),
    set_in("parts", 1, "shards", 0, "length", to=10**30),
    set_in("parts", 1, "shards", 0, "length", to="a"),
    set_in("parts", 1, "shards", 0, "length", to=None),
    set_in("parts", 1, "shards", 0, "offset", to=9),
    set_in("parts", 1, "shards", 0, "offset", to=-1),
    set_in("parts", to=[]),
    set_in("parts", to={}),
    set_in("parts", to=3),
]


@pytest.mark.parametrize("change", ABSURD, ids=lambda change: change.__name__)
def test_a_manifest_that_claims_the_impossible_is_corrupt_though_its_digest_fits(change: Change) -> None:
    body = unseal(encode_manifest(MANIFEST))
    change(body)
    with pytest.raises(Corrupt):
        decode_manifest(seal(body))


@pytest.mark.parametrize(
    "change",
    [
        set_in("cut", "world_size", to="3"),
        set_in("cut", "world_size", to=1),
        set_in("cut", "generation", to="../x"),
        set_in("part", "rank", to=3),
        set_in("part", "file", to="../x"),
        set_in("part", "chunks", to=[]),
        set_in("part", "shards", 0, "length", to=None),
        set_in("part", to=[]),
    ],
    ids=lambda change: change.__name__,
)
def test_so_is_a_part(change: Change) -> None:
    body = unseal(encode_part(CUT, PARTS[1]))
    change(body)
    with pytest.raises(Corrupt):
        decode_part(seal(body))


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (set_in("parts", 0, "shards", 0, "tensor", to="no-such"), "a shard of 'no-such', which is no tensor"),
        (set_in("parts", 0, "tensors", 0, "dtype", to="F9"), "of type 'F9'"),
    ],
)
def test_what_is_claimed_is_told(change: Change, claim: str) -> None:
    body = unseal(encode_manifest(MANIFEST))
    change(body)
    with pytest.raises(Corrupt, match=f"it claims .*{claim}"):
        decode_manifest(seal(body))


def test_nothing_large_is_allocated_for_what_is_only_claimed() -> None:
    bodies = [unseal(encode_manifest(MANIFEST)) for _ in ABSURD]
    for change, body in zip(ABSURD, bodies, strict=True):
        change(body)
    # Those that are themselves large are not merely claimed.
    sealed = [data for data in map(seal, bodies) if len(data) < 10_000]
    tracemalloc.start()
    for data in sealed:
        with pytest.raises(Corrupt):
            decode_manifest(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2_000_000


def test_more_json_than_any_manifest_has_is_not_even_looked_at() -> None:
    class Endless(bytes):
        def __len__(self) -> int:
            return 2**40

    with pytest.raises(Corrupt, match="1099511627776 bytes of JSON"):
        decode_manifest(Endless())


def test_the_size_of_a_tensor_of_absurdly_many_dimensions_is_not_even_computed() -> None:
    body = unseal(encode_manifest(MANIFEST))
    body["parts"][0]["tensors"][0]["shape"] = [10**9] * 10**4
    with pytest.raises(Corrupt, match="of shape"):
        decode_manifest(seal(body))


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=4))
def test_only_shards_that_tile_a_tensor_are_accepted(spans: list[tuple[int, int]]) -> None:
    cut = replace(CUT, world_size=1)
    part = part_of(cut, 0)
    shards = tuple(Shard(tensor="param/w", start=start, length=length, offset=0) for start, length in spans)
    claimed = replace(part, tensors=(replace(part.tensors[0], shape=(3, 4)),), shards=shards)
    owners = [sum(start <= element < start + length for start, length in spans) for element in range(18)]
    try:
        manifest_of(cut, [claimed])
    except Corrupt:
        assert owners != [1] * 12 + [0] * 6
    else:
        assert owners == [1] * 12 + [0] * 6


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_noticed(place: int, bit: int) -> None:
    data = bytearray(encode_manifest(MANIFEST))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Corrupt):
        decode_manifest(bytes(data))


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_numbers_of_every_type_can_be_saved(dtype: str) -> None:
    cut = replace(CUT, world_size=1)
    part = part_of(cut, 0)
    tensors = (replace(part.tensors[0], dtype=dtype, shape=(3, 1)),)
    shards = (replace(part.shards[0], length=3, offset=0),)
    manifest = manifest_of(cut, [replace(part, tensors=tensors, shards=shards)])
    assert manifest.tensors["param/w"].num_elements == 3


def test_a_tensor_without_elements_needs_no_shard() -> None:
    cut = replace(CUT, world_size=1)
    part = part_of(cut, 0)
    empty = replace(part.tensors[0], name="param/none", shape=(0, 7))
    assert manifest_of(cut, [replace(part, tensors=(*part.tensors, empty))]).tensors["param/none"] == empty
