"""Reads any stretch of the long row of tokens that lies in shards, local or in object storage.

Files are not mapped into memory: a mapped file that is cut short would kill the process without a message.
``DataError`` names a shard that is not as the index says. A store that is away raises its own errors.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol, runtime_checkable

from checkpointing.stores.contract import Missing
from jobs.training.task.token_index import DTYPE_BYTES, DataError, TokenIndex, TokenShard


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


class Shards:
    """The shards of one index. Several threads may read at the same time."""

    def __init__(self, store: Readable, index: TokenIndex) -> None:
        self._store = store
        self._shards = index.shards
        self._width = DTYPE_BYTES[index.dtype]
        self._ends = list(accumulate(shard.num_tokens for shard in index.shards))

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
