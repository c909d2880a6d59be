"""Digests of chunks: 128-bit xxh3, which is fast enough to run over every byte saved or loaded."""

import xxhash

from checkpointing.format.manifest import CHUNK_BYTES


def digest(*pieces: bytes | memoryview) -> str:
    """Returns the digest of the chunk that ``pieces`` form when joined."""
    found = xxhash.xxh3_128()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def digests(data: memoryview) -> tuple[str, ...]:
    """Returns the digest of each ``CHUNK_BYTES`` of ``data``; the last chunk may be shorter."""
    starts = range(0, len(data), CHUNK_BYTES)
    return tuple(digest(data[start : start + CHUNK_BYTES]) for start in starts)
