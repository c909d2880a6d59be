"""The rule by which ranks share a tensor, so that a manifest need not say what each of them has. Pure.

A tensor is cut into ``num_splits`` of equal size, by rows or by elements; the last ones may be smaller, or
empty. Each of them is shared by ``num_shares`` ranks, in parts that differ by one element at most. Rank
number r has share ``r // num_splits`` of split ``r % num_splits``; ranks beyond have nothing.

So fsdp's rows, zero3's slices, ddp's shares, and fsdp's rows shared by copies are each one rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from checkpointing.format.manifest import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    is_by_rows: bool
    num_splits: int
    num_shares: int

    @property
    def num_ranks(self) -> int:
        return self.num_splits * self.num_shares

    def span(self, tensor: TensorInfo, rank: int) -> tuple[int, int]:
        """Returns the first element and the number of elements that ``rank`` has."""
        if rank >= self.num_ranks:
            return 0, 0
        start, end = self._bounds(tensor, rank % self.num_splits)
        share = rank // self.num_splits
        first, last = ((end - start) * place // self.num_shares for place in (share, share + 1))
        return start + first, last - first

    def ranks(self, tensor: TensorInfo, start: int, end: int) -> Iterator[int]:
        """Yields those that have some of the elements from ``start`` up to ``end``."""
        size = self._size(tensor)
        if start >= end or not size:
            return
        for split in range(start // size, (end - 1) // size + 1):
            before, behind = self._bounds(tensor, split)
            shares = (
                ((element - before + 1) * self.num_shares - 1) // (behind - before)
                for element in (max(start, before), min(end, behind) - 1)
            )
            first, last = shares
            yield from (share * self.num_splits + split for share in range(first, last + 1))

    def _bounds(self, tensor: TensorInfo, split: int) -> tuple[int, int]:
        size, num_elements = self._size(tensor), tensor.num_elements
        return min(split * size, num_elements), min((split + 1) * size, num_elements)

    def _size(self, tensor: TensorInfo) -> int:
        if not self.is_by_rows or not tensor.shape:
            return -(-tensor.num_elements // self.num_splits)
        return -(-tensor.shape[0] // self.num_splits) * prod(tensor.shape[1:])


def usual_splits(world_size: int, ranks_per_copy: int) -> list[Split]:
    """Returns those that strategies use, the most usual first."""
    copies = world_size // ranks_per_copy if 0 < ranks_per_copy <= world_size else 1
    found = [
        Split(is_by_rows=True, num_splits=world_size, num_shares=1),
        Split(is_by_rows=False, num_splits=1, num_shares=world_size),
        Split(is_by_rows=False, num_splits=world_size, num_shares=1),
    ]
    if copies > 1:
        found += [
            Split(is_by_rows=True, num_splits=ranks_per_copy, num_shares=shares) for shares in (copies, 1)
        ]
    return found
