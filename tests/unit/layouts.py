"""Generations of many ranks and tensors without their bytes, as each strategy lays them out."""

import random
from collections.abc import Callable, Iterable, Sequence

from checkpointing.format.digests import digest
from checkpointing.format.manifest import (
    CHUNK_BYTES,
    DTYPE_BYTES,
    Cut,
    FilePart,
    Manifest,
    Shard,
    TensorInfo,
    file_name,
    manifest_of,
    own_prefix,
)
from tests.unit.small_generations import cut_of

Span = tuple[int, int]
"""The first element and the number of elements."""
SpanOf = Callable[[TensorInfo, int, int], Span]
"""The span of a rank, of so many ranks."""


def rows(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
    count, *row = tensor.shape or (1,)
    size = -(-count // num_ranks)
    first, last = (min(place * size, count) for place in (rank, rank + 1))
    for length in row:
        first, last = first * length, last * length
    return first, last - first


def slices(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
    size = -(-tensor.num_elements // num_ranks)
    first, last = (min(place * size, tensor.num_elements) for place in (rank, rank + 1))
    return first, last - first


def shares(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
    first, last = (tensor.num_elements * place // num_ranks for place in (rank, rank + 1))
    return first, last - first


def on_rank_0(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
    return (0, tensor.num_elements) if rank == 0 else (0, 0)


def in_a_row(tensors: Sequence[TensorInfo]) -> SpanOf:
    """As zero1: all tensors are one long row, cut into one part per rank."""
    begins, end = {}, 0
    for tensor in tensors:
        begins[tensor.name] = end
        end += tensor.num_elements

    def span(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
        size = -(-end // num_ranks)
        begin = begins[tensor.name]
        first, last = (min(max(place * size - begin, 0), tensor.num_elements) for place in (rank, rank + 1))
        return first, last - first

    return span


def at_random(seed: int) -> SpanOf:
    def span(tensor: TensorInfo, rank: int, num_ranks: int) -> Span:
        dice = random.Random(f"{seed}/{tensor.name}")
        inner = sorted(dice.randint(0, tensor.num_elements) for _ in range(num_ranks - 1))
        borders = [0, *inner, tensor.num_elements]
        order = dice.sample(range(num_ranks), num_ranks)
        place = order[rank]
        return borders[place], borders[place + 1] - borders[place]

    return span


def own_of(rank: int) -> list[TensorInfo]:
    return [
        TensorInfo(name=f"{own_prefix(rank)}{name}", dtype="U8", shape=(size,))
        for name, size in (("python", 2509), ("torch", 5056))
    ]


def part(
    rank: int,
    held: Iterable[tuple[TensorInfo, Span]],
    *,
    base: int = 4096,
    gap: int = 0,
    state: dict[str, str] | None = None,
) -> FilePart:
    """The elements lie behind each other in the order of ``snapshot.layout``, with ``gap`` bytes between."""
    held = list(held)
    offsets, end = {}, base
    for tensor, (_, length) in sorted(held, key=lambda one: -DTYPE_BYTES[one[0].dtype]):
        offsets[tensor.name] = end
        end += length * DTYPE_BYTES[tensor.dtype] + gap
    return FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=end,
        chunks=tuple(digest(b"%d/%d" % (rank, at)) for at in range(-(-end // CHUNK_BYTES))),
        tensors=tuple(tensor for tensor, _ in held),
        shards=tuple(
            Shard(tensor=tensor.name, start=start, length=length, offset=offsets[tensor.name])
            for tensor, (start, length) in held
        ),
        state=state if state is not None else {"canary": f"{rank:032x}"},
    )


def generation_of(
    tensors: Sequence[TensorInfo], span_of: SpanOf, num_ranks: int, *, cut: Cut | None = None, gap: int = 0
) -> Manifest:
    cut = cut or cut_of(10, term=1, number=1, world_size=num_ranks)
    parts = [
        part(
            rank,
            [(one, span_of(one, rank, num_ranks)) for one in tensors]
            + [(one, (0, one.num_elements)) for one in own_of(rank)],
            gap=gap,
        )
        for rank in range(num_ranks)
    ]
    return manifest_of(cut, parts)


def tensors_of(count: int, seed: int = 0) -> list[TensorInfo]:
    dice = random.Random(seed)
    shapes = [(), (1,), (7,), (64, 3), (5, 4, 3), (2, 0), (1000,)]
    return [
        TensorInfo(
            name=f"param/{number}", dtype=dice.choice(["F32", "BF16", "U8"]), shape=dice.choice(shapes)
        )
        for number in range(count)
    ]
