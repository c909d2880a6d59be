"""Reads all shards and compares them with the index: their size, and their SHA-256 where the index has it."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from checkpointing.stores.contract import Missing, Store
from jobs.runs.data_read.documents import Place
from jobs.training.task.token_index import DECODED, DTYPE_BYTES, TokenIndex, TokenShard

_NUM_READERS = 4
READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """``num_right`` shards have the bytes of the index; ``num_unknown`` may have, as it has no SHA-256 of
    them. ``problems`` is one line for each shard that has others.
    """

    num_right: int
    num_unknown: int
    num_bytes: int
    problems: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    num_bytes: int = 0
    problem: str | None = None


def verify_all(places: Sequence[Place], names: Sequence[str]) -> Verified:
    """Raises as ``verify``. A problem begins with the name of its place."""
    found = [verify(place.store, place.index) for place in places]
    return Verified(
        num_right=sum(one.num_right for one in found),
        num_unknown=sum(one.num_unknown for one in found),
        num_bytes=sum(one.num_bytes for one in found),
        problems=[f"{name}{line}" for name, one in zip(names, found, strict=True) for line in one.problems],
    )


def verify(store: Store, index: TokenIndex) -> Verified:
    """Raises ``StoreError`` if the store fails; a shard that is not there is a problem of that shard."""
    with ThreadPoolExecutor(_NUM_READERS) as pool:
        looks = list(pool.map(partial(_look, store, DTYPE_BYTES[index.dtype]), index.shards))
    unknown = [
        look
        for look, shard in zip(looks, index.shards, strict=True)
        if look.problem is None and not shard.is_named_by_its_bytes
    ]
    problems = [look.problem for look in looks if look.problem is not None]
    return Verified(
        num_right=len(looks) - len(unknown) - len(problems),
        num_unknown=len(unknown),
        num_bytes=sum(look.num_bytes for look in looks),
        problems=problems,
    )


def _look(store: Store, width: int, shard: TokenShard) -> _Look:
    if shard.name.endswith(DECODED):
        return _Look()
    digest, num_bytes = hashlib.sha256(), 0
    try:
        for part in _parts(store, shard.name, shard.num_tokens * width):
            digest.update(part)
            num_bytes += len(part)
    except Missing:
        return _Look(problem=f"{shard.name}: is not there")
    problem = _problem(shard, shard.num_tokens * width, num_bytes, digest.hexdigest())
    return _Look(num_bytes=num_bytes, problem=problem)


def _parts(store: Store, name: str, expected: int) -> Iterator[memoryview]:
    """The bytes of a shard, and one more if there is one: a longer shard is not read to its end."""
    buffer, start = memoryview(bytearray(READ_BYTES)), 0
    while start <= expected:
        wanted = min(len(buffer), expected + 1 - start)
        count = store.get_range(name, start, buffer[:wanted])
        yield buffer[:count]
        start += count
        if count < wanted:
            return


def _problem(shard: TokenShard, expected: int, num_bytes: int, digest: str) -> str | None:
    if num_bytes != expected:
        differs = "longer" if num_bytes > expected else "shorter"
        return f"{shard.name}: is {differs} than the {expected:,} bytes of its {shard.num_tokens:,} tokens"
    if shard.is_named_by_its_bytes and digest != shard.sha256:
        return f"{shard.name}: has the SHA-256 {digest}, but the index says {shard.sha256}"
    return None
