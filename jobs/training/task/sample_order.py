"""The order in which a long run reads its samples: a pure function of the seed and the position.

The stream is one epoch after another. Each epoch has every sample once, in an order of its own. A position
counts the samples before it, so a position means the same at every world size and with every global batch.
"""

import hashlib
from math import isqrt

_NUM_ROUNDS = 4


def sample_at(position: int, *, num_samples: int, seed: int) -> int:
    """The number of the sample at ``position``; needs no memory, however long an epoch is."""
    epoch, index = divmod(position, num_samples)
    side = isqrt(num_samples - 1) + 1
    # The permutation has side x side numbers, more than an epoch: repeat it until the number is in the epoch.
    while True:
        index = _permuted(index, side, f"{seed}/{epoch}")
        if index < num_samples:
            return index


def share_of_rank(
    position: int, *, rank: int, world_size: int, micro_batch: int, grad_accum: int
) -> list[range]:
    """The positions of one rank's micro-batches in the step that begins after ``position`` samples.

    The shares of all ranks together are exactly the step's positions, at any world size and ``grad_accum``.
    """
    firsts = [position + (micro * world_size + rank) * micro_batch for micro in range(grad_accum)]
    return [range(first, first + micro_batch) for first in firsts]


def epoch_ended(before: int, after: int, *, num_samples: int) -> int | None:
    """The epoch, counted from 1, that ends between two positions; None if no epoch ends there."""
    return after // num_samples if after // num_samples > before // num_samples else None


def _permuted(index: int, side: int, key: str) -> int:
    """Permutes the numbers below side x side by a Feistel network, whatever its rounds compute."""
    left, right = divmod(index, side)
    for number in range(_NUM_ROUNDS):
        left, right = right, (left + _hash(f"{key}/{number}/{right}")) % side
    return left * side + right


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
