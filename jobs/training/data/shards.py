"""Reads any stretch of the long row of tokens that lies in shards, local or in object storage.

Files are not mapped into memory: a mapped file that is cut short would kill the process without a message.
``DataError`` names a shard that is not as the index says. A store that is away raises its own errors.
"""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from checkpointing.stores.contract import Missing
from jobs.training.data.kept_files import Piece
from jobs.training.task.token_index import DTYPE_BYTES, DataError, TokenIndex, TokenShard

# Of one shard, between two looks at the clock; the very first is looked at alone, for a slow file system.
_PIECES = 8


class Readable(Protocol):
    """The part of a store that reading needs."""

    url: str

    def get_range(self, name: str, start: int, into: memoryview) -> int: ...


class Copyable(Readable, Protocol):
    """The part of a store that copying needs."""

    def size(self, name: str) -> int: ...


@runtime_checkable
class Vouching(Copyable, Protocol):
    """A store that compares what is read from it with the bytes that a run began with."""

    def vouches(self, name: str, version: str | None) -> bool: ...

    def vouched(self, name: str) -> str | None: ...


@runtime_checkable
class Near(Readable, Protocol):
    """A store that may have shards on this node, where many reads cost less together."""

    def fill(self, name: str, pieces: Sequence[Piece]) -> bool:
        """Whether all pieces were filled, with bytes that are right; else ``get_range`` is to be asked."""


class Shards:
    """The shards of one index. Several threads may read at the same time."""

    def __init__(self, store: Readable, index: TokenIndex) -> None:
        self._store = store
        # To ask that takes as long as reading many samples.
        self._near_store = store if isinstance(store, Near) else None
        self._shards = index.shards
        self._width = DTYPE_BYTES[index.dtype]
        self._ends = list(accumulate(shard.num_tokens for shard in index.shards))
        # New memory would be filled with zeros first, and be given page by page.
        self._near = bytearray()

    def read(self, start: int, count: int) -> bytearray:
        """The little-endian ids of ``count`` tokens from token ``start`` on, also across shards."""
        ids = bytearray(count * self._width)
        into, number = memoryview(ids), bisect_right(self._ends, start)
        while into:
            shard = self._shards[number]
            first = start - (self._ends[number] - shard.num_tokens)
            here = into[: (shard.num_tokens - first) * self._width]
            self._fill(shard, first, here)
            into, start, number = into[len(here) :], self._ends[number], number + 1
        return ids

    def read_near(self, starts: Sequence[int], count: int, most_s: float) -> tuple[memoryview, set[int]]:
        """The ids of ``count`` tokens from each of ``starts`` on, one behind another, and which of them were
        read. Of others they are any: those are far, are not as expected, or would take more than ``most_s``.

        One thread at a time calls it, and the ids are good until it calls again.
        """
        size = count * self._width
        if len(self._near) < len(starts) * size:
            self._near = bytearray(len(starts) * size)
        ids = memoryview(self._near)[: len(starts) * size]
        if self._near_store is None:
            return ids, set()
        of_shards: defaultdict[int, list[int]] = defaultdict(list)
        for place, start in enumerate(starts):
            number = bisect_right(self._ends, start)
            if start + count <= self._ends[number]:
                of_shards[number].append(place)
        read, end_s = set[int](), time.monotonic() + most_s
        most = 1
        for number, places in of_shards.items():
            shard = self._shards[number]
            begin = self._ends[number] - shard.num_tokens
            at = 0
            while part := places[at : at + most]:
                at, most = at + most, _PIECES
                pieces = [
                    ((starts[place] - begin) * self._width, ids[place * size : (place + 1) * size])
                    for place in part
                ]
                if time.monotonic() > end_s or not self._near_store.fill(shard.name, pieces):
                    break
                read |= set(part)
        return ids, read

    def name_at(self, token: int) -> str:
        """The URL of the shard that has this token, for messages."""
        return f"{self._store.url}/{self._shards[bisect_right(self._ends, token)].name}"

    def _fill(self, shard: TokenShard, first: int, into: memoryview) -> None:
        try:
            num_bytes = self._store.get_range(shard.name, first * self._width, into)
        except Missing:
            raise DataError(f"data: {self._store.url}/{shard.name} is gone; bring it back") from None
        if num_bytes < len(into):
            num_there = first + num_bytes // self._width
            raise DataError(
                f"data: {self._store.url}/{shard.name} was cut short: token {num_there:,} of "
                f"{shard.num_tokens:,} is not there; bring the whole file back"
            )
