"""Plans which bytes of which file a rank needs. Pure.

A tensor is a row of elements, saved in intervals and wanted in intervals. Moving to another strategy or
world size is therefore only the intersection of intervals.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpointing.errors import Corrupt, Unfit
from checkpointing.format.manifest import DTYPE_BYTES, Manifest, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """``length`` elements from element ``start`` on, of a ``tensor`` that has ``num_elements`` in all."""

    tensor: str
    start: int
    length: int
    num_elements: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copies ``num_bytes`` from byte ``offset`` of a file to byte ``to`` of want number ``want``."""

    offset: int
    num_bytes: int
    want: int
    to: int


def plan(manifest: Manifest, wants: Sequence[Want]) -> dict[int, list[Copy]]:
    """Returns the copies that fill all wants, by the rank that saved the file, in file order.

    Raises ``Unfit`` if the generation belongs to another model: a tensor is missing or has another size or
    type. Raises ``Corrupt`` unless the copies fill each byte of each want exactly once.
    """
    shards = _shards_by_tensor(manifest)
    tensors = manifest.tensors
    copies: dict[int, list[Copy]] = defaultdict(list)
    for number, want in enumerate(wants):
        found = tensors.get(want.tensor)
        if found is None or (found.num_elements, found.dtype) != (want.num_elements, want.dtype):
            raise Unfit(f"{want.tensor}: wanted {want.num_elements} of {want.dtype}, found {found}")
        if want.start + want.length > want.num_elements:
            raise Unfit(f"{want.tensor}: wanted up to {want.start + want.length} of {want.num_elements}")
        filled = []
        for rank, shard in shards.get(want.tensor, ()):
            if copy := _intersection(shard, want, number):
                copies[rank].append(copy)
                filled.append((copy.to, copy.to + copy.num_bytes))
        _check_filled(want, filled)
    return {rank: sorted(found, key=lambda copy: copy.offset) for rank, found in copies.items()}


def _check_filled(want: Want, filled: Sequence[tuple[int, int]]) -> None:
    end = 0
    for first, last in sorted(filled):
        if first != end:
            raise Corrupt(f"{want.tensor}: its shards leave gaps or overlap")
        end = last
    if end != want.length * DTYPE_BYTES[want.dtype]:
        raise Corrupt(f"{want.tensor}: no shard has its elements up to {want.start + want.length}")


def _shards_by_tensor(manifest: Manifest) -> Mapping[str, list[tuple[int, Shard]]]:
    shards = defaultdict(list)
    for part in manifest.parts:
        for shard in part.shards:
            shards[shard.tensor].append((part.rank, shard))
    return shards


def _intersection(shard: Shard, want: Want, number: int) -> Copy | None:
    start = max(shard.start, want.start)
    end = min(shard.start + shard.length, want.start + want.length)
    if start >= end:
        return None
    size = DTYPE_BYTES[want.dtype]
    return Copy(
        offset=shard.offset + (start - shard.start) * size,
        num_bytes=(end - start) * size,
        want=number,
        to=(start - want.start) * size,
    )
