"""The order in which a long run reads its samples: a pure function of the seed and the position.

The stream is epoch after epoch, each with every sample once in an order of its own. A position counts
the samples before it, so it means the same at every world size and under every global batch.
"""

import hashlib
from math import isqrt

_NUM_ROUNDS = 4


def sample_at(position: int, *, num_samples: int, seed: int) -> int:
    """The number of the sample at ``position``; needs no memory, however long an epoch is."""
    epoch, index = divmod(position, num_samples)
    side = isqrt(num_samples - 1) + 1
    # A permutation of side x side numbers, walked until it leads back into the epoch.
    while True:
        index = _mixed(index, side, f"{seed}/{epoch}")
        if index < num_samples:
            return index


def share_of_rank(
    position: int, *, rank: int, world_size: int, micro_batch: int, grad_accum: int
) -> list[range]:
    """Of the step that begins after ``position`` samples, the positions of one rank's micro-batches.

    All ranks' shares together are the positions up to the next step's, however they are dealt out.
    """
    firsts = [position + (micro * world_size + rank) * micro_batch for micro in range(grad_accum)]
    return [range(first, first + micro_batch) for first in firsts]


def epoch_ended(before: int, after: int, *, num_samples: int) -> int | None:
    """The epoch, counted from 1, whose last sample lies between two positions; None if none's does."""
    return after // num_samples if after // num_samples > before // num_samples else None


def _mixed(index: int, side: int, key: str) -> int:
    """A Feistel network: a permutation whatever its rounds compute."""
    left, right = divmod(index, side)
    for number in range(_NUM_ROUNDS):
        left, right = right, (left + _hash(f"{key}/{number}/{right}")) % side
    return left * side + right


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
