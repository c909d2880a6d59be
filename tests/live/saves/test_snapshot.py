"""Live tensors into memory of our own and back: a cut is a copy, whatever the training does afterwards."""

import ctypes
import json
import threading
import weakref
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load as load_safetensors

from checkpointing.format.digests import digests
from checkpointing.format.loading import GenerationPlace, fill
from checkpointing.format.manifest import Cut, FilePart, file_name, manifest_of
from checkpointing.format.reshard import plan
from checkpointing.saving import snapshot
from checkpointing.saving.snapshot import Arena, Landing, Layout, Piece, layout
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore

SHAPES = {"w": (5, 7), "b": (3,), "scalar": (), "none": (0, 4)}
DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.int64, torch.float16)


def pieces_of(dtypes: tuple[torch.dtype, ...] = DTYPES, *, rank: int = 0, num_ranks: int = 1) -> list[Piece]:
    """A rank's even share of a tensor of each shape and type."""
    found = []
    for number, dtype in enumerate(dtypes):
        for name, shape in SHAPES.items():
            whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
            whole = (whole + number).to(dtype)
            start, end = (len(whole) * border // num_ranks for border in (rank, rank + 1))
            piece = Piece(name=f"{name}-{number}", shape=shape, start=start, values=whole[start:end].clone())
            found.append(piece)
    return found


def copies(pieces: list[Piece]) -> list[torch.Tensor]:
    return [piece.values.clone() for piece in pieces]


def part_of(found: Layout, arena: Arena, rank: int) -> FilePart:
    return FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=found.num_bytes,
        chunks=digests(arena.data),
        tensors=found.tensors,
        shards=found.shards,
    )


def cut_of(num_ranks: int) -> Cut:
    return Cut(
        generation="g", run="r", step=1, term=1, number=1, strategy="ddp", world_size=num_ranks, created_s=0.0
    )


def test_a_cut_is_a_copy_so_training_on_changes_nothing_of_it() -> None:
    pieces = pieces_of()
    arena = Arena(pieces, layout(pieces))
    arena.take(pieces)
    before = bytes(arena.data)
    for piece in pieces:
        piece.values.add_(1)
    assert bytes(arena.data) == before
    arena.take(pieces)
    assert bytes(arena.data) != before


def test_a_copy_in_the_background_is_of_the_state_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, goes_on = pieces_of(), Event()
    expected, arena = (Arena(pieces, layout(pieces)) for _ in range(2))
    expected.take(pieces)
    copy = ctypes.memmove

    def late(*args: int) -> None:
        assert goes_on.wait(30)
        copy(*args)

    monkeypatch.setattr(snapshot.ctypes, "memmove", late)
    copying = arena.begin(pieces)
    threading.Timer(0.2, goes_on.set).start()
    copying.settle()
    for piece in pieces:
        piece.values.add_(1)
    assert bytes(arena.data) == bytes(expected.data)
    arena.take(pieces)
    assert bytes(arena.data) != bytes(expected.data)
    assert copying.waited_s > 0


def test_a_copy_that_fails_costs_the_save_and_not_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: int) -> None:
        raise MemoryError("no")

    pieces = pieces_of()
    arena = Arena(pieces, layout(pieces))
    monkeypatch.setattr(snapshot.ctypes, "memmove", fail)
    arena.begin(pieces).settle()
    with pytest.raises(RuntimeError, match=r"^the copy of this rank's state failed: no$"):
        bytes(arena.data)


def test_where_no_thread_is_to_be_had_the_copy_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pieces = pieces_of()
    expected, arena = (Arena(pieces, layout(pieces)) for _ in range(2))
    expected.take(pieces)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    arena.begin(pieces).settle()
    assert bytes(arena.data) == bytes(expected.data)


def test_what_a_device_copies_stays_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(snapshot, "_launched", lambda pairs, device: copied)
    values = numpy.zeros(8, dtype=numpy.float32)
    pieces = [Piece(name="w", shape=(8,), start=0, values=torch.from_numpy(values))]
    arena, memory = Arena(pieces, layout(pieces)), weakref.ref(values)
    monkeypatch.setattr(snapshot, "_is_on_host", lambda values: False)
    arena.begin(pieces)
    del pieces, values
    assert memory() is not None
    assert arena.data
    assert memory() is None


def test_a_file_says_the_same_of_the_ecosystem(tmp_path: Path) -> None:
    pieces = pieces_of()
    arena = Arena(pieces, layout(pieces))
    arena.take(pieces)
    path = tmp_path / "rank.safetensors"
    path.write_bytes(arena.data)
    with safe_open(str(path), framework="pt") as file:
        names = set(file.keys())
        for piece in pieces:
            if piece.values.numel():
                assert torch.equal(file.get_tensor(piece.name), piece.values)
    assert names == {piece.name for piece in pieces if piece.values.numel()}
    assert set(load_safetensors(path.read_bytes())) == names


def test_its_header_is_as_long_as_it_says_and_data_begins_at_a_page() -> None:
    found = layout(pieces_of())
    length = int.from_bytes(found.header[:8], "little")
    assert len(found.header) == 8 + length
    assert len(found.header) % 4096 == 0
    json.loads(found.header[8:])


def test_every_piece_begins_where_its_numbers_may() -> None:
    pieces = pieces_of()
    found = layout(pieces)
    for piece, shard in zip(pieces, found.shards, strict=True):
        assert shard.offset % piece.values.element_size() == 0
        assert shard.offset + piece.values.nbytes <= found.num_bytes


def test_the_layout_is_the_same_at_the_first_and_at_every_later_save() -> None:
    pieces = pieces_of()
    first = layout(pieces)
    for piece in pieces:
        piece.values.zero_()
    assert layout(pieces) == first


def test_its_memory_is_written_before_the_first_save_and_stays_where_it_is() -> None:
    """What is written for the first time is slow; a second arena takes turns with the first."""
    pieces = pieces_of()
    arenas = [Arena(pieces, layout(pieces)) for _ in range(2)]
    addresses = [torch.frombuffer(arena.data, dtype=torch.uint8).data_ptr() for arena in arenas]
    for arena in (*arenas, *arenas):
        arena.take(pieces)
    assert [torch.frombuffer(arena.data, dtype=torch.uint8).data_ptr() for arena in arenas] == addresses
    assert bytes(arenas[0].data) == bytes(arenas[1].data)
    assert addresses[0] != addresses[1]


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 1), (2, 2), (3, 1), (1, 4), (4, 3)])
def test_what_was_saved_lands_in_live_memory_under_any_number_of_ranks(
    saved_by: int, loaded_by: int, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    parts = []
    for rank in range(saved_by):
        pieces = pieces_of(rank=rank, num_ranks=saved_by)
        found = layout(pieces)
        arena = Arena(pieces, found)
        arena.take(pieces)
        parts.append(part_of(found, arena, rank))
        store.put(f"g/{file_name(rank)}", arena.data)
    manifest = manifest_of(cut_of(saved_by), parts)
    for rank in range(loaded_by):
        pieces = pieces_of(rank=rank, num_ranks=loaded_by)
        expected = copies(pieces)
        for piece in pieces:
            piece.values.zero_()
        landing = Landing(pieces)
        fill(
            manifest,
            plan(manifest, landing.wants),
            landing.buffers,
            [GenerationPlace(store=store, folder="g")],
        )
        landing.settle()
        assert all(torch.equal(piece.values, one) for piece, one in zip(pieces, expected, strict=True))


def test_a_rank_that_has_nothing_of_a_tensor_lands_it_from_the_host() -> None:
    """Its empty piece lies on the device, from which no buffer can be made."""
    landing = Landing([Piece(name="w", shape=(4,), start=4, values=torch.empty(0, device="meta"))])
    assert [len(buffer) for buffer in landing.buffers] == [0]


def test_parameters_that_require_gradients_are_saved_and_loaded_in_place() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0))
    piece = Piece(name="w", shape=(6,), start=0, values=parameter.detach().view(-1))
    found = layout([piece])
    arena = Arena([piece], found)
    arena.take([piece])
    with torch.no_grad():
        parameter.fill_(7)
    store = MemoryStore()
    store.put(f"g/{file_name(0)}", arena.data)
    manifest = manifest_of(cut_of(1), [part_of(found, arena, 0)])
    landing = Landing([piece])
    fill(manifest, plan(manifest, landing.wants), landing.buffers, [GenerationPlace(store=store, folder="g")])
    landing.settle()
    assert parameter.tolist() == [0, 1, 2, 3, 4, 5]
