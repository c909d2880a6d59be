"""Which source stands at a position of a mixture: its share of any prefix, each sample once an epoch."""

from collections import Counter
from contextlib import nullcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.training.data.mixture import (
    MOST_STRETCHES,
    Share,
    _turn,
    check_left_out,
    continued,
    drawn_at,
    mixed_at,
    num_drawn,
    recorded_in,
    stretches_of,
    whole_weights,
)
from jobs.training.task.sample_order import _drawn, share_of_rank
from jobs.training.task.skipping import RecordedStretches
from jobs.training.task.task import Mixture, Tokens, WeightedTokens
from jobs.training.task.token_index import TokenIndex
from jobs.training.task.windows import Windows

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=7).map(tuple)


@given(weights=WEIGHTS, first=st.integers(0, 10**12))
@settings(deadline=None)
def test_every_prefix_has_each_source_s_share_within_one_sample(weights: tuple[int, ...], first: int) -> None:
    total = sum(weights)
    drawn = num_drawn(first, weights)
    for end in range(first, first + 2 * total):
        for weight, one in zip(weights, drawn, strict=True):
            assert abs(one - Fraction(weight * end, total)) < 1
        source, before = drawn_at(end, weights)
        assert before == drawn[source]
        drawn[source] += 1
    assert drawn == num_drawn(first + 2 * total, weights)


def test_a_source_s_epochs_have_each_of_its_samples_once_in_another_order() -> None:
    shares = [Share(name="web", weight=7, num_samples=50), Share(name="code", weight=3, num_samples=20)]
    found: dict[int, list[int]] = {0: [], 1: []}
    for position in range(500):
        source, number = mixed_at(position, shares, seed=3)
        found[source].append(number)
    assert [len(found[source]) for source in (0, 1)] == [350, 150]
    for source, size in ((0, 50), (1, 20)):
        epochs = [
            tuple(found[source][at : at + size]) for at in range(0, len(found[source]) - size + 1, size)
        ]
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert len(set(epochs)) == len(epochs) >= 7
    # Neither the other sources nor the weights change a source's order.
    other = [Share(name="new", weight=1, num_samples=9), shares[1]]
    again = [mixed_at(position, other, seed=3) for position in range(400)]
    assert [number for source, number in again if source == 1][:150] == found[1]
    assert [mixed_at(position, shares, seed=4) for position in range(40)] != [
        mixed_at(position, shares, seed=3) for position in range(40)
    ]
    alike = [Share(name=name, weight=1, num_samples=50) for name in ("a", "b")]
    orders = [[mixed_at(2 * at + source, alike, seed=3)[1] for at in range(50)] for source in (0, 1)]
    assert orders[0] != orders[1]


def test_all_world_sizes_read_the_same_samples_of_the_same_sources_through_kills() -> None:
    shares = [Share(name=f"s{one}", weight=one + 1, num_samples=11 * (one + 3)) for one in range(4)]
    wanted = [mixed_at(position, shares, seed=1) for position in range(960)]
    found: Counter[tuple[int, int, int]] = Counter()
    position, attempt = 0, 0
    while position < 960:
        world_size = (1, 2, 4, 3)[attempt % 4]
        step = 12
        for _ in range(1 + attempt % 5):
            if position >= 960:
                break
            for rank in range(world_size):
                ranges = share_of_rank(
                    position, rank=rank, world_size=world_size, micro_batch=1, grad_accum=step // world_size
                )
                for place in (place for one in ranges for place in one):
                    found[(place, *mixed_at(place, shares, seed=1))] += 1
            position += step
        attempt += 1
    assert found == Counter({(place, *one): 1 for place, one in enumerate(wanted)})
    assert attempt > 20


@pytest.mark.parametrize(
    ("weights", "whole"), [((0.7, 0.2, 0.1), (7, 2, 1)), ((3.0,), (1,)), ((1.5, 0.75, 6), (2, 1, 8))]
)
def test_weights_are_taken_as_they_are_written(weights: tuple[float, ...], whole: tuple[int, ...]) -> None:
    assert whole_weights(weights) == whole


def test_weights_of_too_many_digits_are_refused() -> None:
    with pytest.raises(
        ValueError, match="weights 1e-05, 1 in whole numbers are together more than 100,000; round them"
    ):
        whole_weights((1e-05, 1))
    with pytest.raises(ValueError, match=r"^weights 1e[+]308, [-4.0-9e]+ in whole .{,80}$"):
        whole_weights((1e308, 5e-324))


def test_the_orders_of_many_small_sources_are_drawn_once() -> None:
    shares = [Share(name=f"source {number}", weight=1, num_samples=40) for number in range(60)]
    _drawn.cache_clear()
    for position in range(60 * 40):
        mixed_at(position, shares, seed=0)
    assert _drawn.cache_info().misses == len(shares)


def mixture_of(**weights: int) -> Mixture:
    tokens = Tokens(
        url="nowhere",
        index=TokenIndex(dtype="uint16", shards=()),
        windows=Windows(seq_len=1, num_samples=20),
    )
    return Mixture(
        sources=tuple(
            WeightedTokens(name=name, weight=weight, tokens=tokens) for name, weight in weights.items()
        )
    )


@given(
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 9), st.integers(1, 9)), max_size=6),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=30)
def test_no_change_of_weights_moves_what_stands_before_it_nor_loses_a_source_s_sample(
    changes: list[tuple[int, int, int]], seed: int
) -> None:
    shares = [Share(name=name, weight=1, num_samples=size) for name, size in (("web", 50), ("code", 20))]
    recorded = continued((), mixture_of(web=3, code=1), 0)
    before: list[tuple[int, int]] = []
    for position, web, code in sorted(changes):
        before = [
            mixed_at(one, shares, seed=seed, stretches=stretches_of(recorded)) for one in range(position)
        ]
        recorded = continued(recorded, mixture_of(web=web, code=code), position)
        stretches = stretches_of(recorded)
        assert [mixed_at(one, shares, seed=seed, stretches=stretches) for one in range(position)] == before
        # From there, each source has its share by the new weights, within one sample.
        after = [mixed_at(position + one, shares, seed=seed, stretches=stretches)[0] for one in range(60)]
        for end in range(60):
            assert abs(after[:end].count(0) - Fraction(web * end, web + code)) < 1
    stretches = stretches_of(recorded)
    found = [mixed_at(one, shares, seed=seed, stretches=stretches) for one in range(500)]
    # Each source is read as if it were alone: one epoch after the other.
    for source, share in enumerate(shares):
        alone = [mixed_at(one, [share], seed=seed)[1] for one in range(500)]
        own = [number for at, number in found if at == source]
        assert own == alone[: len(own)]


@pytest.mark.parametrize(
    ("recorded", "position", "stretches"),
    [
        ((), 0, ((0, "web 3, code 1"),)),
        (((0, "web 3, code 1"),), 50, ((0, "web 3, code 1"),)),
        (((0, "web 1, code 1"),), 50, ((0, "web 1, code 1"), (50, "web 3, code 1"))),
        # Nothing was read by the weights of a start that did no step.
        (((0, "web 1, code 1"), (50, "web 2, code 1")), 50, ((0, "web 1, code 1"), (50, "web 3, code 1"))),
        (((0, "web 3, code 1"), (50, "web 2, code 1")), 50, ((0, "web 3, code 1"),)),
        (((0, "web 1, code 1"),), 0, ((0, "web 3, code 1"),)),
        # A run that begins with what another run has learnt from other sources.
        (((0, "code 1, web 3"),), 50, ((0, "web 3, code 1"),)),
        (((0, "books 3, code 1"),), 50, ((0, "web 3, code 1"),)),
    ],
)
def test_a_run_goes_on_in_the_stretches_of_its_save(
    recorded: RecordedStretches, position: int, stretches: RecordedStretches
) -> None:
    assert continued(recorded, mixture_of(web=3, code=1), position) == stretches


A, B = "web 1, code 1", "web 3, code 1"


@pytest.mark.parametrize(
    ("found_in", "saved", "position", "says"),
    [
        (
            ((0, A),),
            ((0, A),),
            100,
            "120 to 135 are left out .* are web 3, code 1 from sample 100 on, and were web",
        ),
        (((0, A),), ((0, A),), 135, "set those back until the run is past sample 136"),
        (((0, A),), (), 0, "others now"),
        # The save at which the weights were changed is lost.
        (((0, A), (100, B)), ((0, A),), 90, "from sample 90 on, and were web 3, code 1 from sample 100 on"),
        (((0, A),), ((0, A),), 136, None),
        # It went wrong before the first save by the new weights, and goes on from the one before that.
        (((0, A), (100, B)), ((0, A),), 100, None),
        (((0, B),), (), 0, None),
        ((), (), 0, None),
    ],
)
def test_samples_that_are_left_out_stay_the_same_or_the_weights_are_refused(
    found_in: RecordedStretches, saved: RecordedStretches, position: int, says: str | None
) -> None:
    now = continued(saved, mixture_of(web=3, code=1), position)
    with pytest.raises(ValueError, match=says) if says else nullcontext():
        check_left_out(((120, 136),), found_in, now, position)
    shares = [Share(name=name, weight=1, num_samples=500) for name in ("web", "code")]
    left_out = [
        {mixed_at(one, shares, seed=0, stretches=stretches_of(one_way)) for one in range(120, 136)}
        for one_way in (found_in, now)
    ]
    # As a proof that what is refused would leave out others.
    assert position >= 136 or not found_in or (left_out[0] != left_out[1]) == bool(says)


@pytest.mark.parametrize(
    "recorded",
    [
        ((5, "web 1"),),
        ((0, "web 1"), (9, "web 1, code 2")),
        ((0, "web 1"), (9, "web 2"), (9, "web 3")),
        ((0, "web 0"),),
        ((0, "web"),),
        ((0, ""),),
        ((0, "web 1000000000000"), (9, "web 1")),
        ((0, "web 60000, code 40001"),),
        ((0, "web 1, code 3"), (9, "code 1, web 3")),
        ((0, "web 1, code 3"), (9, "web 1, books 3")),
        tuple((first, f"web 1, code {first + 1}") for first in range(MOST_STRETCHES + 1)),
    ],
)
def test_stretches_that_no_run_records_are_refused(recorded: RecordedStretches) -> None:
    with pytest.raises(ValueError):
        recorded_in({"stretches": [list(one) for one in recorded]})


def test_weights_change_no_more_often_than_can_be_kept() -> None:
    most = tuple((first, f"web 1, code {first + 1}") for first in range(MOST_STRETCHES))
    recorded = recorded_in({"stretches": [list(one) for one in most]})
    with pytest.raises(ValueError, match="have changed 63 times, which is the most; expected web 1, code 64"):
        continued(recorded, mixture_of(web=3, code=1), 500)
    assert continued(recorded, mixture_of(web=1, code=MOST_STRETCHES), 500) == recorded


@pytest.mark.parametrize(
    "spec", ["web 1", [1], {"data": [1]}, {"data": "web"}, {"data": {"mixture": {"web": 1}}}]
)
def test_a_spec_that_no_run_saves_is_unknown_and_nothing_else(spec: object) -> None:
    with pytest.raises(ValueError):
        recorded_in({"spec": spec})


def test_many_changes_of_long_turns_are_counted_once_each() -> None:
    _turn.cache_clear()
    texts = [", ".join(f"s{one} {400 + one + number}" for one in range(20)) for number in range(12)]
    recorded = tuple((50_000 * number, text) for number, text in enumerate(texts))
    for _ in range(2):
        assert len(stretches_of(recorded)) == 12
    assert _turn.cache_info().misses == 11


def test_which_source_stands_where_has_not_changed() -> None:
    """Another order would read samples of every run that is resumed across the change twice, or never."""
    found = "".join(str(drawn_at(position, (7, 3, 1, 4))[0]) for position in range(15))
    assert found == "030103010320130"


def test_a_save_of_an_older_version_has_its_weights_from_its_beginning_on() -> None:
    spec = {"data": {"kind": "tokens", "mixture": "web 3, code 1"}}
    assert recorded_in({"spec": spec}) == ((0, "web 3, code 1"),)
    changed = [[0, "web 1, code 1"], [20, "web 3, code 1"]]
    assert recorded_in({"spec": spec, "stretches": changed}) == tuple(map(tuple, changed))
    assert recorded_in({"spec": {"data": {"kind": "tokens"}}}) == recorded_in({}) == ()
