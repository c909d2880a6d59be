"""From any tiling to any wants: exactly the right bytes arrive, out of any chunks, files and places."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.digests import digests
from checkpointing.format.loading import GenerationPlace, fill, verify
from checkpointing.format.manifest import (
    CHUNK_BYTES,
    DTYPE_BYTES,
    FilePart,
    Manifest,
    Shard,
    TensorInfo,
    file_name,
    manifest_of,
)
from checkpointing.format.reshard import Want, plan
from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import TENSOR, content, cut_of, file_of, load_from, part_of

LARGE = random.Random(1).randbytes(2 * CHUNK_BYTES + 12_345)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A generation in memory, and what each tensor consists of."""

    manifest: Manifest
    place: GenerationPlace
    bytes_of: dict[str, bytes]


class Away(MemoryStore):
    """Can't be reached."""

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        raise Unavailable("away")


@st.composite
def borders(draw: st.DrawFn, end: int) -> list[int]:
    """0, some between, and ``end``; some of them twice."""
    near_chunks = st.integers(-3, 3).map(lambda off: min(max(0, CHUNK_BYTES + off), end))
    return [0, *sorted(draw(st.lists(st.integers(0, end) | near_chunks, max_size=4))), end]


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[TensorInfo, bytes]]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        info = TensorInfo(name=f"t{number}", dtype=draw(st.sampled_from(sorted(DTYPE_BYTES))), shape=shape)
        num_bytes = info.num_elements * DTYPE_BYTES[info.dtype]
        found.append((info, draw(st.binary(min_size=num_bytes, max_size=num_bytes))))
    return found


LARGE_ONE = st.just([(TensorInfo(name="t", dtype="U8", shape=(len(LARGE),)), LARGE)])


@st.composite
def generations(draw: st.DrawFn, contents: st.SearchStrategy[list[tuple[TensorInfo, bytes]]]) -> Saved:
    """Tensors tiled over some ranks in any way."""
    world_size = draw(st.integers(1, 4))
    files = [bytearray(b"h" * draw(st.integers(0, 9))) for _ in range(world_size)]
    shards: list[list[Shard]] = [[] for _ in files]
    found = draw(contents)
    for info, data in found:
        size, ends = DTYPE_BYTES[info.dtype], draw(borders(info.num_elements))
        for start, end in pairwise(ends):
            rank = draw(st.integers(0, world_size - 1))
            offset = len(files[rank])
            shards[rank].append(Shard(tensor=info.name, start=start, length=end - start, offset=offset))
            files[rank] += data[start * size : end * size]
    return _saved([info for info, _ in found], files, shards, {info.name: data for info, data in found})


def _saved(
    infos: Sequence[TensorInfo],
    files: Sequence[bytearray],
    shards: Sequence[Sequence[Shard]],
    bytes_of: dict[str, bytes],
) -> Saved:
    store = MemoryStore()
    parts = []
    for rank, data in enumerate(files):
        part = FilePart(
            rank=rank,
            file=file_name(rank),
            num_bytes=len(data),
            chunks=digests(memoryview(data)),
            tensors=tuple(infos),
            shards=tuple(shards[rank]),
        )
        parts.append(part)
        store.put(f"g/{part.file}", memoryview(data))
    manifest = manifest_of(cut_of(1, term=1, number=1, world_size=len(files)), parts)
    return Saved(manifest=manifest, place=GenerationPlace(store=store, folder="g"), bytes_of=bytes_of)


@st.composite
def wants_of(draw: st.DrawFn, saved: Saved) -> list[Want]:
    wants = []
    for name, info in saved.manifest.tensors.items():
        for _ in range(draw(st.integers(0, 3))):
            start, end = sorted(draw(st.integers(0, info.num_elements)) for _ in range(2))
            wants.append(
                Want(
                    tensor=name,
                    start=start,
                    length=end - start,
                    num_elements=info.num_elements,
                    dtype=info.dtype,
                )
            )
    return wants


def _arrived(saved: Saved, wants: Sequence[Want]) -> list[bytes]:
    buffers = [bytearray(want.length * DTYPE_BYTES[want.dtype]) for want in wants]
    views = [memoryview(buffer) for buffer in buffers]
    fill(saved.manifest, plan(saved.manifest, wants), views, [saved.place])
    return list(map(bytes, buffers))


def _expected(saved: Saved, want: Want) -> bytes:
    size = DTYPE_BYTES[want.dtype]
    return saved.bytes_of[want.tensor][want.start * size : (want.start + want.length) * size]


@given(st.data())
def test_any_tiling_to_any_wants_gives_exactly_the_right_bytes(data: st.DataObject) -> None:
    saved = data.draw(generations(tensors()))
    wants = data.draw(wants_of(saved))
    assert _arrived(saved, wants) == [_expected(saved, want) for want in wants]


@settings(max_examples=25)
@given(st.data())
def test_so_it_does_where_shards_and_wants_end_within_chunks_or_at_their_ends(data: st.DataObject) -> None:
    saved = data.draw(generations(LARGE_ONE))
    wants = data.draw(wants_of(saved))
    assert _arrived(saved, wants) == [_expected(saved, want) for want in wants]


@given(st.data())
def test_only_what_is_wanted_is_read_and_each_byte_once(data: st.DataObject) -> None:
    saved = data.draw(generations(tensors()))
    wants = data.draw(wants_of(saved))
    copies = [copy for of_file in plan(saved.manifest, wants).values() for copy in of_file]
    covered = sorted((copy.want, copy.to, copy.to + copy.num_bytes) for copy in copies)
    for number, want in enumerate(wants):
        spans = [(start, end) for index, start, end in covered if index == number]
        ends = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[:-1]
        assert ends[-1] == want.length * DTYPE_BYTES[want.dtype]


CUT = cut_of(1, term=1, number=1, world_size=2)
MANIFEST = manifest_of(CUT, [part_of(CUT, rank) for rank in range(2)])
WANT = Want(tensor=TENSOR, start=0, length=46, num_elements=46, dtype="U8")


@pytest.mark.parametrize(
    "want",
    [
        replace(WANT, tensor="param/v"),
        replace(WANT, num_elements=47),
        replace(WANT, dtype="F32"),
        replace(WANT, start=1),
    ],
    ids=["no such tensor", "another size", "another type", "beyond its end"],
)
def test_a_generation_of_another_model_is_unfit(want: Want) -> None:
    with pytest.raises(Unfit, match=want.tensor):
        plan(MANIFEST, [want])


def place_with(*ranks: int, damaged: int | None = None) -> GenerationPlace:
    store = MemoryStore()
    for rank in ranks:
        data = bytearray(file_of(CUT, rank))
        if rank == damaged:
            data[-1] ^= 1
        store.put(f"g/{file_name(rank)}", bytes(data))
    return GenerationPlace(store=store, folder="g")


AWAY = GenerationPlace(store=Away(), folder="g")


@pytest.mark.parametrize(
    "places",
    [
        [place_with(0, 1)],
        [place_with(), place_with(0, 1)],
        [place_with(0), place_with(1)],
        [place_with(0, 1, damaged=0), place_with(0)],
        [AWAY, place_with(0, 1)],
        [place_with(0, 1), AWAY],
    ],
    ids=[
        "one place has all",
        "the near one has nothing",
        "each has one file",
        "the near one is damaged",
        "the near one is away",
        "the far one is away but not needed",
    ],
)
def test_each_file_comes_from_the_first_place_that_has_it_whole(places: list[GenerationPlace]) -> None:
    assert load_from(MANIFEST, places) == content(CUT.generation, 2)


@pytest.mark.parametrize(
    ("places", "error"),
    [
        ([place_with(0)], Corrupt),
        ([place_with(0, 1, damaged=1)], Corrupt),
        ([place_with(0, 1, damaged=1), place_with(0)], Corrupt),
        ([place_with(0), AWAY], Unavailable),
        ([AWAY, place_with(0, 1, damaged=1)], Unavailable),
    ],
    ids=["missing", "damaged", "damaged here, missing there", "missing here, away there", "the reverse"],
)
def test_what_is_nowhere_whole_is_corrupt_unless_a_place_that_is_away_might_have_it(
    places: list[GenerationPlace], error: type[Exception]
) -> None:
    with pytest.raises(error):
        load_from(MANIFEST, places)


@pytest.mark.parametrize("data", [file_of(CUT, 0)[:-1], file_of(CUT, 0) + b"x", b""])
def test_a_file_that_is_shorter_or_longer_than_it_was_is_no_copy(data: bytes) -> None:
    place = place_with(0)
    verify(part_of(CUT, 0), place)
    place.store.put(f"g/{file_name(0)}", data)
    with pytest.raises(Corrupt):
        verify(part_of(CUT, 0), place)


@pytest.mark.parametrize("place", range(0, len(LARGE), CHUNK_BYTES // 3))
def test_a_damaged_byte_in_any_chunk_of_a_large_file_is_found_when_it_is_read_back(place: int) -> None:
    info = TensorInfo(name="t", dtype="U8", shape=(len(LARGE),))
    shard = Shard(tensor="t", start=0, length=len(LARGE), offset=0)
    saved = _saved([info], [bytearray(LARGE)], [[shard]], {"t": LARGE})
    (part,) = saved.manifest.parts
    verify(part, saved.place)
    damaged = bytearray(LARGE)
    damaged[place] ^= 0x80
    saved.place.store.put(f"g/{part.file}", bytes(damaged))
    with pytest.raises(Corrupt, match=f"bytes from {place // CHUNK_BYTES * CHUNK_BYTES} on"):
        verify(part, saved.place)


def test_an_error_of_the_store_that_nothing_mends_is_told_as_it_is() -> None:
    class Broken(MemoryStore):
        def get_range(self, name: str, start: int, into: memoryview) -> int:
            raise StoreError("no such bucket")

    with pytest.raises(StoreError, match="no such bucket"):
        load_from(MANIFEST, [GenerationPlace(store=Broken(), folder="g")])
