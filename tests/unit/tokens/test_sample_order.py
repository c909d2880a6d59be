"""The order of samples: each once per epoch, and nothing but the seed and the position decides."""

import hashlib
from collections import Counter
from itertools import chain, pairwise
from math import factorial, isqrt
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.training.task.sample_order import (
    BLOCK_SAMPLES,
    FIRST_ORDER,
    IN_BLOCKS,
    IN_ORDER,
    MOST_DRAWN,
    MOST_KEPT,
    NEWEST_ORDER,
    ORDERS,
    SampleOrder,
    Shuffle,
    epoch_ended,
    known_order,
    newest_order,
    sample_at,
    samples_at,
    share_of_rank,
    shuffle_of,
    stored_order,
)

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**64)
EPOCHS = st.integers(0, 10**9)


def epoch_of(epoch: int, num_samples: int, seed: int, order: SampleOrder = NEWEST_ORDER) -> list[int]:
    first = epoch * num_samples
    return [
        sample_at(first + index, num_samples=num_samples, seed=seed, order=order)
        for index in range(num_samples)
    ]


@given(num_samples=SIZES, seed=SEEDS, epoch=EPOCHS, order=st.sampled_from(ORDERS))
def test_an_epoch_has_each_sample_exactly_once(
    num_samples: int, seed: int, epoch: int, order: SampleOrder
) -> None:
    assert sorted(epoch_of(epoch, num_samples, seed, order)) == list(range(num_samples))


def uneven(found: Counter[Any], num_kinds: int) -> float:
    """Chi-square over its degrees of freedom: about 1 if each kind is as likely as any other."""
    usual = found.total() / num_kinds
    unseen = (num_kinds - len(found)) * usual
    return (sum((times - usual) ** 2 / usual for times in found.values()) + unseen) / (num_kinds - 1)


def whole_orders(num_samples: int, order: SampleOrder) -> float:
    epochs = (tuple(epoch_of(0, num_samples, seed, order)) for seed in range(3000))
    return uneven(Counter(epochs), factorial(num_samples))


def neighbours(num_samples: int, order: SampleOrder) -> float:
    """Which sample follows which one."""
    pairs = (pairwise(epoch_of(0, num_samples, seed, order)) for seed in range(1000))
    return uneven(Counter(chain.from_iterable(pairs)), num_samples * (num_samples - 1))


@pytest.mark.parametrize("num_samples", [3, 4, 5])
def test_of_few_samples_each_order_is_as_frequent_as_any_other(num_samples: int) -> None:
    assert 0.4 < whole_orders(num_samples, NEWEST_ORDER) < 1.6


@pytest.mark.parametrize("num_samples", [8, 12, 16])
def test_each_sample_follows_each_other_one_as_often(num_samples: int) -> None:
    assert 0.6 < neighbours(num_samples, NEWEST_ORDER) < 1.4


def test_the_first_order_is_biased_for_few_samples() -> None:
    """The reason for the second one, and a proof that the tests above would see a bias."""
    assert whole_orders(4, FIRST_ORDER) > 2
    assert neighbours(8, FIRST_ORDER) > 2


@pytest.mark.parametrize("stored", [0, 5, 10, 15, True, 1.0, "1", None, [1], 10**400], ids=repr)
def test_an_order_that_no_version_had_is_none_that_is_known(stored: object) -> None:
    assert known_order(stored) is None
    assert [known_order(order) for order in (1, 2)] == [1, 2]


@pytest.mark.parametrize("order", ORDERS)
def test_older_versions_refuse_the_order_of_a_mixture_whose_weights_changed(order: SampleOrder) -> None:
    assert [stored_order(order, num_stretches) for num_stretches in (0, 1)] == [order, order]
    assert known_order(changed := stored_order(order, 2)) == order
    # All that they know.
    assert changed not in (1, 2, 3, 4)


def test_where_an_epoch_is_too_long_to_be_drawn_both_orders_are_the_same() -> None:
    drawn, longer = MOST_DRAWN, MOST_DRAWN + 1
    assert epoch_of(0, drawn, 3, FIRST_ORDER) != epoch_of(0, drawn, 3, NEWEST_ORDER)
    assert epoch_of(0, longer, 3, FIRST_ORDER) == epoch_of(0, longer, 3, NEWEST_ORDER)


# Of so many samples two orders are the same by chance once in some 10^28.
@given(
    num_samples=st.integers(50, 300), seed=SEEDS, epochs=st.lists(EPOCHS, min_size=2, max_size=3, unique=True)
)
def test_every_epoch_has_an_order_of_its_own(num_samples: int, seed: int, epochs: list[int]) -> None:
    orders = {tuple(epoch_of(epoch, num_samples, seed)) for epoch in epochs}
    assert len(orders) == len(epochs)


@given(num_samples=st.integers(50, 300), seed=SEEDS, epoch=EPOCHS)
def test_another_seed_gives_another_order(num_samples: int, seed: int, epoch: int) -> None:
    assert epoch_of(epoch, num_samples, seed) != epoch_of(epoch, num_samples, seed + 1)


@given(num_samples=SIZES, seed=SEEDS, data=st.data())
def test_where_and_how_often_it_was_asked_before_changes_nothing(
    num_samples: int, seed: int, data: st.DataObject
) -> None:
    """As for a run that is resumed in the middle, and for ranks that each ask for their share alone."""
    straight = epoch_of(0, num_samples, seed) + epoch_of(1, num_samples, seed)
    asked = data.draw(st.lists(st.integers(0, 2 * num_samples - 1), max_size=30))
    found = [sample_at(position, num_samples=num_samples, seed=seed) for position in asked]
    assert found == [straight[position] for position in asked]


@given(num_samples=st.integers(1, 5000), seed=SEEDS, order=st.sampled_from(ORDERS), data=st.data())
def test_many_positions_have_the_samples_that_each_has_alone(
    num_samples: int, seed: int, order: SampleOrder, data: st.DataObject
) -> None:
    """Also of several epochs, and in any order."""
    places = data.draw(st.lists(st.integers(0, 3 * num_samples - 1), max_size=30))
    alone = [sample_at(place, num_samples=num_samples, seed=seed, order=order) for place in places]
    assert samples_at(places, num_samples=num_samples, seed=seed, order=order) == alone


def by_definition(position: int, num_samples: int, seed: int) -> int:
    """The first order, each hash computed where it is needed: what every run so far has read by."""
    epoch, index = divmod(position, num_samples)
    side = isqrt(num_samples - 1) + 1
    while True:
        left, right = divmod(index, side)
        for number in range(4):
            text = f"{seed}/{epoch}/{number}/{right}"
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            left, right = right, (left + int.from_bytes(digest, "big")) % side
        if (index := left * side + right) < num_samples:
            return index


@given(
    num_samples=st.integers(MOST_DRAWN + 1, 10**13), seed=SEEDS, order=st.sampled_from([1, 2]), data=st.data()
)
def test_what_is_kept_of_an_order_changes_none_of_its_samples(
    num_samples: int, seed: int, order: SampleOrder, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, 3 * num_samples - 1), max_size=50))
    for place in [*places, *places, *range(20)]:
        found = sample_at(place, num_samples=num_samples, seed=seed, order=order)
        assert found == by_definition(place, num_samples, seed)


@pytest.mark.parametrize("num_samples", [MOST_KEPT**2 - 1, MOST_KEPT**2, MOST_KEPT**2 + 1])
def test_an_order_too_long_to_be_kept_is_the_same(num_samples: int) -> None:
    for place in (0, 1, num_samples - 1, num_samples, 2 * num_samples - 1):
        assert sample_at(place, num_samples=num_samples, seed=3) == by_definition(place, num_samples, 3)


def test_the_order_of_a_run_that_was_begun_long_ago_still_holds() -> None:
    """A changed order would repeat and lose samples of every run that is resumed across the change."""
    assert epoch_of(0, 12, 0, FIRST_ORDER) == [9, 10, 0, 5, 1, 7, 4, 6, 2, 3, 11, 8]
    assert epoch_of(1, 12, 0, FIRST_ORDER) == [11, 5, 4, 10, 8, 2, 3, 0, 1, 6, 7, 9]
    assert epoch_of(0, 12, 7, FIRST_ORDER) == [4, 0, 3, 10, 9, 2, 6, 8, 1, 5, 11, 7]
    assert epoch_of(0, 12, 0, NEWEST_ORDER) == [2, 9, 0, 11, 10, 5, 3, 7, 6, 1, 4, 8]
    assert epoch_of(1, 12, 7, NEWEST_ORDER) == [6, 8, 0, 4, 5, 3, 10, 11, 1, 9, 7, 2]


@given(num_samples=SIZES, before=st.integers(0, 10**6), step=st.integers(1, 500))
def test_an_epoch_ended_where_its_last_sample_was_taken(num_samples: int, before: int, step: int) -> None:
    after = before + step
    ended = [
        position // num_samples for position in range(before + 1, after + 1) if position % num_samples == 0
    ]
    assert epoch_ended(before, after, num_samples=num_samples) == (ended[-1] if ended else None)


# A step's samples dealt out to ranks, and a run that is stopped and goes on at other world sizes.

# Ways to deal out twelve samples: world size, micro-batch, passes.
DEALS = [
    (world_size, micro_batch, 12 // (world_size * micro_batch))
    for world_size in range(1, 13)
    for micro_batch in range(1, 13)
    if 12 % (world_size * micro_batch) == 0
]
deals = st.sampled_from(DEALS)


def step_of(position: int, deal: tuple[int, int, int]) -> list[int]:
    """The positions that all ranks take together."""
    world_size, micro_batch, grad_accum = deal
    shares = [
        share_of_rank(
            position, rank=rank, world_size=world_size, micro_batch=micro_batch, grad_accum=grad_accum
        )
        for rank in range(world_size)
    ]
    assert all(len(share) == grad_accum for share in shares)
    assert all(len(micro) == micro_batch for share in shares for micro in share)
    return [place for share in shares for micro in share for place in micro]


@given(position=st.integers(0, 10**12), deal=deals)
def test_a_step_is_the_same_samples_however_they_are_dealt_out(
    position: int, deal: tuple[int, int, int]
) -> None:
    assert sorted(step_of(position, deal)) == list(range(position, position + 12))


@given(
    num_samples=st.integers(12, 100),
    seed=SEEDS,
    # Each attempt: how it deals, how many steps it does, how many of these are lost to what stops it.
    attempts=st.lists(st.tuples(deals, st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8),
)
def test_stops_and_other_world_sizes_neither_repeat_nor_lose_a_sample(
    num_samples: int, seed: int, attempts: list[tuple[tuple[int, int, int], int, int]]
) -> None:
    steps: list[list[int]] = []
    for deal, num_steps, num_lost in attempts:
        steps += [step_of(12 * (len(steps) + more), deal) for more in range(num_steps)]
        # It goes on from what was saved: the work behind it is done again.
        del steps[max(0, len(steps) - num_lost) :]
    places = list(chain(*steps))
    used = Counter(
        (place // num_samples, sample_at(place, num_samples=num_samples, seed=seed)) for place in places
    )
    assert set(used.values()) <= {1}
    num_whole = len(places) // num_samples
    assert {used[epoch, number] for epoch in range(num_whole) for number in range(num_samples)} <= {1}
    assert len(used) == len(places)


def test_sizes_around_squares_and_single_samples_are_permuted_too() -> None:
    """All sizes up to a few squares: where the walk of the permutation has its corners."""
    for num_samples in range(1, 150):
        assert sorted(epoch_of(3, num_samples, seed=5)) == list(range(num_samples))


@given(num_samples=st.integers(1, 5 * BLOCK_SAMPLES), seed=SEEDS, epoch=EPOCHS)
@settings(deadline=None, max_examples=20)
def test_blocks_of_neighbours_follow_one_another(num_samples: int, seed: int, epoch: int) -> None:
    found = epoch_of(epoch, num_samples, seed, IN_BLOCKS)
    assert sorted(found) == list(range(num_samples))
    for first in range(0, num_samples, BLOCK_SAMPLES):
        block = set(found[first : first + BLOCK_SAMPLES])
        # Neighbours on a circle: all but one are followed by one of the same block.
        followed = sum((number + 1) % num_samples in block for number in block)
        assert followed >= len(block) - 1


def test_blocks_and_what_is_in_them_are_shuffled_and_cut_anew_in_each_epoch() -> None:
    num_samples = 7 * BLOCK_SAMPLES + 100
    epochs = [epoch_of(number, num_samples, seed, IN_BLOCKS) for number in (0, 1) for seed in (0, 1)]
    firsts = {tuple(epoch[::BLOCK_SAMPLES]) for epoch in epochs}
    assert len(firsts) == len(epochs)
    blocks = [frozenset(epoch[:BLOCK_SAMPLES]) for epoch in epochs]
    assert len(set(blocks)) == len(blocks)
    for epoch in epochs:
        in_turn = [set(epoch[at : at + BLOCK_SAMPLES]) for at in range(0, num_samples, BLOCK_SAMPLES)]
        # On a circle: blocks as they lie would be neighbours all.
        pairs = pairwise(in_turn)
        assert sum(any((one + 1) % num_samples in after for one in before) for before, after in pairs) < 5
        steps = sum(after == before + 1 for before, after in pairwise(epoch))
        assert steps < num_samples / 20
    assert epoch_of(0, 12, 0, IN_BLOCKS) == [6, 5, 4, 2, 7, 11, 1, 9, 8, 0, 10, 3]
    assert epoch_of(1, 600, 7, IN_BLOCKS)[250:260] == [442, 401, 535, 491, 494, 306, 83, 104, 26, 593]


def test_samples_as_they_lie() -> None:
    assert epoch_of(0, 12, 0, IN_ORDER) == epoch_of(5, 12, 3, IN_ORDER) == list(range(12))


@pytest.mark.parametrize("shuffle", get_args(Shuffle))
def test_each_way_to_shuffle_has_an_order_that_saves_name(shuffle: Shuffle) -> None:
    assert shuffle_of(newest_order(shuffle)) == shuffle
    assert shuffle_of(FIRST_ORDER) == "global"
