"""Digests of chunks, fast enough for the way of every byte: xxh3 of 128 bits."""

import xxhash

from checkpointing.manifest import CHUNK_BYTES


def digest(chunk: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(chunk)


def digests(data: memoryview) -> tuple[str, ...]:
    """Of each ``CHUNK_BYTES`` of ``data``, the last one may be shorter."""
    starts = range(0, len(data), CHUNK_BYTES)
    return tuple(digest(data[start : start + CHUNK_BYTES]) for start in starts)
