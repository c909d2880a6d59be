"""Digests of chunks, fast enough for the way of every byte: xxh3 of 128 bits."""

import xxhash

from checkpointing.format.manifest import CHUNK_BYTES


def digest(*pieces: bytes | memoryview) -> str:
    """Of the chunk that they are when put together."""
    found = xxhash.xxh3_128()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def digests(data: memoryview) -> tuple[str, ...]:
    """Of each ``CHUNK_BYTES`` of ``data``, the last one may be shorter."""
    starts = range(0, len(data), CHUNK_BYTES)
    return tuple(digest(data[start : start + CHUNK_BYTES]) for start in starts)
