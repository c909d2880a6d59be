"""The order in which a long run reads its samples: a pure function of the seed and the position.

The stream is one epoch after another. Each epoch has every sample once, in an order of its own. A position
counts the samples before it, so a position means the same at every world size and with every global batch.

There are several orders. A run keeps the one that it began with, or it would repeat and lose samples: the
number of its order stands beside the position in every save.
"""

import hashlib
from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from math import isqrt
from typing import Literal, get_args

# 1: a Feistel network, which is biased for few samples. 2: as 1, but epochs of few samples are drawn. 3: as
# they lie. 4: blocks of neighbours, shuffled, and shuffled within.
SampleOrder = Literal[1, 2, 3, 4]
ORDERS: tuple[SampleOrder, ...] = get_args(SampleOrder)
# That of runs which were begun before there were two.
FIRST_ORDER: SampleOrder = 1
NEWEST_ORDER: SampleOrder = 2
IN_ORDER: SampleOrder = 3
IN_BLOCKS: SampleOrder = 4
Shuffle = Literal["none", "global", "blocks"]
# A save adds it to its order once the weights of its mixture have changed. Versions that know no stretches
# would go on with other samples: they refuse such an order.
_OF_STRETCHES = 10
# How many neighbours make a block.
BLOCK_SAMPLES = 256
# The longest epoch that is drawn: a millisecond, and some kilobytes.
MOST_DRAWN = 1024
# Of epochs of up to 4 billion samples, what the rounds compute is kept.
MOST_KEPT = 2**16
_NUM_ROUNDS = 4


def sample_at(position: int, *, num_samples: int, seed: int, order: SampleOrder = NEWEST_ORDER) -> int:
    """The number of the sample at ``position``; needs next to no memory, however long an epoch is."""
    return samples_at([position], num_samples=num_samples, seed=seed, order=order)[0]


def samples_at(
    positions: Iterable[int], *, num_samples: int, seed: int, order: SampleOrder = NEWEST_ORDER
) -> list[int]:
    """As ``sample_at`` of each, in less time where one follows the other."""
    numbers: list[int] = []
    for epoch, found in groupby(positions, lambda position: position // num_samples):
        indices = [position - epoch * num_samples for position in found]
        numbers += _of_epoch(indices, num_samples, f"{seed}/{epoch}", order)
    return numbers


def newest_order(shuffle: Shuffle) -> SampleOrder:
    """The order of a run that begins now."""
    return {"none": IN_ORDER, "global": NEWEST_ORDER, "blocks": IN_BLOCKS}[shuffle]


def shuffle_of(order: SampleOrder) -> Shuffle:
    return next((one for one in get_args(Shuffle) if newest_order(one) == order), "global")


def stored_order(order: SampleOrder, num_stretches: int) -> int:
    """What a save names ``order``."""
    return order + _OF_STRETCHES if num_stretches > 1 else order


def known_order(stored: object) -> SampleOrder | None:
    """The order that a save names; None if it is one of a later version, or damage."""
    if type(stored) is not int:
        return None
    return next((order for order in ORDERS if stored in (order, order + _OF_STRETCHES)), None)


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


def _of_epoch(indices: list[int], num_samples: int, key: str, order: SampleOrder) -> list[int]:
    if order == IN_ORDER:
        return indices
    if order == IN_BLOCKS:
        return [_in_blocks(index, num_samples, key) for index in indices]
    return _shuffled(indices, num_samples, key, may_draw=order == NEWEST_ORDER)


def _in_blocks(index: int, num_samples: int, key: str) -> int:
    """Cuts the epoch into blocks from another sample on each time, and goes through one after the other. What
    is left over is its last, shorter block.
    """
    num_blocks = num_samples // BLOCK_SAMPLES
    turn, within = divmod(index, BLOCK_SAMPLES)
    is_whole = turn < num_blocks
    block = _shuffled([turn], num_blocks, f"{key}/blocks")[0] if is_whole else num_blocks
    size = BLOCK_SAMPLES if is_whole else num_samples - num_blocks * BLOCK_SAMPLES
    [within] = _shuffled([within], size, f"{key}/block {block}")
    return (_hash(f"{key}/cut") + block * BLOCK_SAMPLES + within) % num_samples


def _shuffled(indices: list[int], size: int, key: str, *, may_draw: bool = True) -> list[int]:
    if may_draw and size <= MOST_DRAWN:
        drawn = _drawn(size, key)
        return [drawn[index] for index in indices]
    side = isqrt(size - 1) + 1
    numbers = _permuted(indices, side, key)
    # The permutation has side x side numbers, more than ``size``: repeat it until a number is below that.
    while beyond := [place for place, number in enumerate(numbers) if number >= size]:
        again = _permuted([numbers[place] for place in beyond], side, key)
        for place, number in zip(beyond, again, strict=True):
            numbers[place] = number
    return numbers


# An order of each source of a mixture, and of the epoch behind it: 40 KB each at most.
@lru_cache(maxsize=256)
def _drawn(num_samples: int, key: str) -> tuple[int, ...]:
    """An epoch's order, each as likely as any other (Fisher-Yates)."""
    numbers = list(range(num_samples))
    for last in range(num_samples - 1, 0, -1):
        # Of 2^64 values, so that a number is at most 2^-54 more likely than another.
        other = _hash(f"{key}/drawn/{last}") % (last + 1)
        numbers[last], numbers[other] = numbers[other], numbers[last]
    return tuple(numbers)


def _permuted(indices: list[int], side: int, key: str) -> list[int]:
    """Permutes the numbers below side x side by a Feistel network, whatever its rounds compute."""
    kept = _shifts(side, key) if side <= MOST_KEPT else None
    numbers = []
    for index in indices:
        left, right = divmod(index, side)
        for number in range(_NUM_ROUNDS):
            shift = kept[number * side + right] if kept else 0
            if not shift:
                shift = 1 + _hash(f"{key}/{number}/{right}") % side
                if kept:
                    kept[number * side + right] = shift
            left, right = right, (left + shift - 1) % side
        numbers.append(left * side + right)
    return numbers


# An epoch of each source of a mixture, and the one behind it: 1 MB each at most.
@lru_cache(maxsize=64)
def _shifts(side: int, key: str) -> "array[int]":
    """What each round adds to each number, plus 1, as far as it was computed; else 0."""
    return array("I", bytes(4 * _NUM_ROUNDS * side))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
