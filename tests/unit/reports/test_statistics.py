"""What the statistics claim, on simulated data with fixed seeds and against their definitions written out."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import sqrt
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.analysis.findings import Verdict
from reporting.analysis.statistics import (
    FEWEST_RUNS,
    MOST_RUNS_EXACT,
    Contrast,
    benjamini_hochberg,
    cliffs_delta,
    contrasts,
    estimate,
    is_unstable,
    mann_whitney,
    num_severe_outliers,
    ratio_interval,
    step_errors,
    verdict,
    welch_slower,
)

RUN_NOISE, STEP_NOISE, NUM_STEPS = 0.01, 0.02, 100
NUM_TRIALS = 1000
DECIDED = ("faster", "slower")

throughputs = st.lists(st.floats(min_value=1e-3, max_value=1e9), min_size=1, max_size=8)
enough = st.lists(st.floats(min_value=1.0, max_value=10.0), min_size=FEWEST_RUNS, max_size=8)


def simulated(
    dice: np.random.RandomState, truth: float, num_runs: int, run_noise: float = RUN_NOISE
) -> tuple[float, ...]:
    """As a sweep would leave it: noise between runs, and between the steps of a run."""
    step_sec = 1 / (truth * (1 + run_noise * dice.standard_normal((num_runs, 1))))
    times = step_sec * (1 + STEP_NOISE * dice.standard_normal((num_runs, NUM_STEPS)))
    return tuple((1 / times.mean(axis=1)).tolist())


@cache
def trials(truth: float, *, num_runs: int = 5, num_trials: int = NUM_TRIALS) -> tuple[Contrast, ...]:
    dice = np.random.RandomState(1)
    return contrasts(
        [(simulated(dice, 1.0, num_runs), simulated(dice, truth, num_runs)) for _ in range(num_trials)]
    )


def share_called(found: Sequence[Contrast], *verdicts: Verdict) -> float:
    return fmean(contrast.verdict in verdicts for contrast in found)


def share_covered(found: Sequence[Contrast], truth: float) -> float:
    return fmean(
        contrast.low <= truth <= contrast.high for contrast in found if contrast.low and contrast.high
    )


@pytest.mark.parametrize(("num_runs", "num_trials"), [(4, 600), (5, NUM_TRIALS), (10, 300)])
def test_of_two_equal_arms_at_most_one_in_twenty_is_called_different(num_runs: int, num_trials: int) -> None:
    found = trials(1.0, num_runs=num_runs, num_trials=num_trials)
    assert share_called(found, *DECIDED) <= 0.05
    assert 0.93 <= share_covered(found, 1.0) <= 0.99


@pytest.mark.parametrize(("truth", "called"), [(1.03, "faster"), (1 / 1.03, "slower")])
def test_three_percent_are_found_with_five_runs(truth: float, called: Verdict) -> None:
    found = trials(truth)
    assert share_called(found, called) >= 0.90
    assert 0.93 <= share_covered(found, truth) <= 0.99


@pytest.mark.parametrize(
    ("num_runs", "noises"), [(4, (0.01, 0.03)), (5, (0.005, 0.05)), (5, (0.03, 0.01)), (10, (0.01, 0.03))]
)
def test_where_one_side_is_noisier_equal_arms_are_still_called_equal(
    num_runs: int, noises: tuple[float, float]
) -> None:
    dice = np.random.RandomState(6)
    arms = [tuple(simulated(dice, 1.0, num_runs, noise) for noise in noises) for _ in range(NUM_TRIALS)]
    found = contrasts([(one, two) for one, two in arms])
    assert share_called(found, *DECIDED) <= 0.064  # 5 %, and two standard errors of so many trials
    assert 0.93 <= share_covered(found, 1.0) <= 0.985


def test_a_step_that_is_twice_as_slow_now_and_then_hides_no_three_percent() -> None:
    """A run's value holds such steps already; resampling them counted them twice."""
    dice = np.random.RandomState(7)

    def side(truth: float) -> tuple[float, ...]:
        times = (1 + (dice.rand(5, NUM_STEPS) < 0.1)) / (truth * (1 + 0.003 * dice.standard_normal((5, 1))))
        # Every run has as many slow steps, as if they came at fixed intervals.
        times *= 1.1 / (times / times.min(axis=1, keepdims=True)).mean(axis=1, keepdims=True)
        return tuple((1 / times.mean(axis=1)).tolist())

    found = contrasts([(side(1.0), side(1.03)) for _ in range(200)])
    assert share_called(found, "faster") >= 0.95


def test_equal_arms_of_ten_runs_are_called_equivalent() -> None:
    assert share_called(trials(1.0, num_runs=10, num_trials=300), "equivalent") >= 0.85


@pytest.mark.parametrize("num_runs", [3, 5, 10])
def test_a_cells_interval_holds_its_true_median(num_runs: int) -> None:
    dice = np.random.RandomState(2)
    found = [estimate((1 + 0.01 * dice.standard_normal(num_runs)).tolist()) for _ in range(NUM_TRIALS)]
    bounds = [(each.low, each.high) for each in found if each and each.low and each.high]
    assert len(bounds) == NUM_TRIALS
    assert 0.93 <= fmean(low <= 1 <= high for low, high in bounds) <= 0.99


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.03, 1.05, "faster"),
        (0.95, 0.99, "slower"),
        (0.99, 1.01, "equivalent"),
        (1.001, 1.019, "equivalent"),
        (1.001, 1.03, "faster"),
        (0.97, 1.01, "inconclusive"),
        (1.0, 1.05, "inconclusive"),
        (0.5, 1.0, "inconclusive"),
        (0.98, 1.02, "equivalent"),
        (None, None, "too few repeats"),
    ],
)
def test_the_verdict_is_the_intervals(low: float | None, high: float | None, said: Verdict) -> None:
    assert verdict(low, high) == said


@pytest.mark.parametrize("num_runs", [0, 1, 3])
def test_below_four_runs_on_a_side_there_is_no_interval(num_runs: int) -> None:
    few, many = (2.0,) * num_runs, (1.0,) * 10
    for pair in ((few, many), (many, few)):
        (found,) = contrasts([pair])
        assert (found.low, found.high, found.verdict) == (None, None, "too few repeats")
        assert (found.ratio is None) == (found.p is None) == (found.cliffs_delta is None) == (num_runs == 0)


@given(enough, enough, st.floats(min_value=1e-6, max_value=1e6))
def test_a_ratio_does_not_depend_on_the_unit(one: list[float], two: list[float], unit: float) -> None:
    def found(scale: float) -> Contrast:
        arms = [tuple(value * scale for value in arm) for arm in (one, two)]
        return contrasts([(arms[0], arms[1])])[0]

    plain, scaled = found(1.0), found(unit)
    assert scaled.ratio == pytest.approx(plain.ratio)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high), rel=1e-5)


@given(enough, enough)
def test_an_interval_holds_its_ratio_and_stays_between_the_extremes(
    one: list[float], two: list[float]
) -> None:
    (found,) = contrasts([(one, two)])
    assert found.ratio
    assert found.low
    assert found.high
    # A widened interval may leave the extremes: that of four runs, and that of sides whose noise differs. The
    # latter widens by at most Student's t of three degrees over the normal distribution's.
    reach = 3.1825 / 1.9599 * (sqrt(4 / 3) if min(len(one), len(two)) == FEWEST_RUNS else 1.0)
    lowest, highest = min(two) / max(one) / found.ratio, max(two) / min(one) / found.ratio
    assert found.ratio * lowest**reach * (1 - 1e-5) <= found.low <= found.ratio * (1 + 1e-5)
    assert found.ratio * (1 - 1e-5) <= found.high <= found.ratio * highest**reach * (1 + 1e-5)


def test_the_same_runs_give_the_same_interval_in_whatever_company() -> None:
    dice = np.random.RandomState(4)
    pairs = [(simulated(dice, 1.0, size), simulated(dice, 1.0, size)) for size in (4, 5, 20)]
    alone = [contrasts([pair])[0] for pair in pairs]
    together = contrasts(pairs[::-1])[::-1]
    assert [(each.low, each.high) for each in alone] == [(each.low, each.high) for each in together]


@pytest.mark.parametrize("num_runs", [4, 15, 39, 40, 41, 42])
def test_many_runs_have_the_medians_that_few_have(num_runs: int) -> None:
    """Two ways to find a median meet at 40 runs; the interval of equally spaced values tells them apart."""
    values = [1 + place / 100 for place in range(num_runs)]
    low, high = ratio_interval([1.0] * 20, values)
    assert low < median(values) < high
    assert (low + high) / 2 == pytest.approx(median(values), abs=0.01)


# What a permutation test is, written out.


def counted_p(one: Sequence[float], two: Sequence[float]) -> float:
    pooled = [*one, *two]
    ranks = [
        sum(other < value for other in pooled) + sum(other == value for other in pooled) / 2
        for value in pooled
    ]
    mean = fmean(ranks) * len(one)
    observed = abs(sum(ranks[: len(one)]) - mean)
    deals = [sum(ranks[place] for place in deal) for deal in combinations(range(len(pooled)), len(one))]
    return fmean(abs(rank_sum - mean) >= observed - 1e-9 for rank_sum in deals)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.integers(1, 5), min_size=1, max_size=6)
)
def test_p_is_what_counting_all_deals_gives_ties_or_not(one: list[int], two: list[int]) -> None:
    assert mann_whitney(one, two) == pytest.approx(counted_p(one, two))


@pytest.mark.parametrize(
    ("one", "two", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 0.1),
        ([1, 2, 3, 4], [5, 6, 7, 8], 2 / 70),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1, 1, 1], [1, 1, 1], 1.0),
    ],
)
def test_p_has_its_known_values(one: list[float], two: list[float], p: float) -> None:
    """Three against three can never be below 5 %."""
    assert mann_whitney(one, two) == pytest.approx(p)


@given(throughputs, throughputs)
def test_p_is_a_probability_and_the_same_from_both_sides(one: list[float], two: list[float]) -> None:
    p = mann_whitney(one, two)
    assert p is not None
    assert 0 < p <= 1
    assert mann_whitney(two, one) == pytest.approx(p)


def test_the_approximation_continues_where_counting_ends() -> None:
    dice = np.random.RandomState(5)
    one, two = (shift + dice.standard_normal(MOST_RUNS_EXACT + 1) for shift in (0.0, 0.25))
    exact = mann_whitney(one[1:].tolist(), two[1:].tolist())
    approximate = mann_whitney([*one[1:], -9.0], [*two[1:], -9.0])
    assert approximate == pytest.approx(exact, rel=0.1)
    assert mann_whitney([1.0] * 200, [1.0] * 200) == 1.0


@pytest.mark.parametrize(
    ("one", "two", "p"),
    [
        # Student's t of 8 degrees: 1.86 has 5 % beyond it, 2.896 has 1 %.
        (1.86, 0.0, 0.05),
        (2.896, 0.0, 0.01),
        (0.0, 1.86, 0.95),
        (1.0, 1.0, 0.5),
    ],
)
def test_the_one_sided_p_has_students_values(one: float, two: float, p: float) -> None:
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    error = float(np.sqrt(2 * np.var(spread, ddof=1) / 5))
    sides = [np.exp(0.001 * (spread + shift * error)).tolist() for shift in (one, two)]
    assert welch_slower(*sides) == pytest.approx(p, rel=0.02)


def test_the_one_sided_p_of_runs_without_noise_is_certain_and_of_too_few_unknown() -> None:
    assert welch_slower([2.0] * 5, [1.0] * 5) == 0.0
    assert welch_slower([1.0] * 5, [1.0] * 5) == 1.0
    assert welch_slower([1.0] * 5, [2.0] * 5) == 1.0
    assert welch_slower([1.0] * 3, [2.0] * 5) is None


probabilities = st.lists(st.one_of(st.none(), st.floats(min_value=1e-12, max_value=1.0)), max_size=12)


@given(probabilities)
def test_adjusting_keeps_order_and_never_makes_p_smaller(p_values: list[float | None]) -> None:
    adjusted = benjamini_hochberg(p_values)
    assert [p is None for p in adjusted] == [p is None for p in p_values]
    known = sorted((p, after) for p, after in zip(p_values, adjusted, strict=True) if p is not None and after)
    assert all(p <= after <= 1 for p, after in known)
    assert [after for _, after in known] == sorted(after for _, after in known)


def test_adjusting_has_its_known_values() -> None:
    assert benjamini_hochberg([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx(
        (0.02, None, 0.04, 0.04, 0.02)
    )


@given(throughputs, throughputs)
def test_cliffs_delta_turns_with_its_sides(one: list[float], two: list[float]) -> None:
    delta = cliffs_delta(one, two)
    assert delta is not None
    assert -1 <= delta <= 1
    assert cliffs_delta(two, one) == pytest.approx(-delta)
    assert cliffs_delta(one, one) == 0


def test_cliffs_delta_is_positive_where_the_other_is_faster() -> None:
    assert cliffs_delta([1, 2], [3, 4]) == 1
    assert cliffs_delta([1, 3], [2, 4]) == 0.5


@given(throughputs, st.floats(min_value=1e-6, max_value=1e6))
def test_an_estimate_scales_with_its_values(values: list[float], unit: float) -> None:
    plain, scaled = estimate(values), estimate([value * unit for value in values])
    assert plain
    assert scaled
    assert scaled.median == pytest.approx(plain.median * unit)
    assert scaled.cv == (None if plain.cv is None else pytest.approx(plain.cv, abs=1e-9))
    if plain.low and plain.high:
        assert (scaled.low, scaled.high) == pytest.approx((plain.low * unit, plain.high * unit))
        assert 0 < plain.low <= plain.median * (1 + 1e-12) <= plain.high * (1 + 1e-9)


def test_one_or_two_values_have_no_interval_and_none_no_estimate() -> None:
    two = estimate([2.0, 4.0])
    assert two
    assert (two.median, two.low, two.high, two.num_runs) == (3.0, None, None, 2)
    assert two.cv
    one = estimate([3.0])
    assert one
    assert (one.median, one.low, one.high, one.cv, one.num_runs) == (3.0, None, None, None, 1)
    assert estimate([]) is None


@pytest.mark.parametrize(("num_runs", "student"), [(3, 4.303), (10, 2.262), (11, 2.228), (31, 2.042)])
def test_the_half_width_of_an_estimate_is_students(num_runs: int, student: float) -> None:
    values = np.exp(np.linspace(-0.01, 0.01, num_runs))
    found = estimate(values.tolist())
    assert found
    assert found.high
    half = student * float(np.std(np.log(values), ddof=1)) * sqrt(np.pi / 2 / num_runs)
    assert np.log(found.high / found.median) == pytest.approx(half, rel=2e-4)


def test_a_severe_outlier_is_beyond_three_interquartile_ranges() -> None:
    steps = [1.0, 1.1, 1.2, 1.3, 1.4] * 4
    assert num_severe_outliers(steps) == 0
    # The quartiles are 1.1 and 1.3 with or without one more step: the fences are 0.5 and 1.9.
    assert num_severe_outliers([*steps, 1.89]) == 0
    assert num_severe_outliers([*steps, 1.91]) == 1
    assert num_severe_outliers([*steps, 0.49]) == 1
    assert num_severe_outliers([]) == 0


@pytest.mark.parametrize(
    ("num_outliers", "run_medians", "unstable"),
    [
        (5, [1.0, 1.1], False),
        (6, [1.0], True),
        (0, [1.0, 1.05, 1.10], False),
        (0, [1.0, 1.05, 1.11], True),
        (0, [], False),
    ],
)
def test_unstable_is_more_than_five_percent_of_outliers_or_ten_of_spread(
    num_outliers: int, run_medians: list[float], unstable: bool
) -> None:
    assert is_unstable(num_outliers=num_outliers, num_steps=100, run_medians=run_medians) == unstable


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([], 0.0),
        ([1.0], 0.0),
        ([1.0, 1.0, 1.0], 0.0),
        ([0.9, 1.1], 0.1 / sqrt(2)),
        ([0.9, 1.1, 0.9, 1.1], 0.1 / 2),
        ([0.9, float("nan")], 0.0),
        ([0.0, 0.0], 0.0),
        ([-1.0, 1.0, 1.01], 0.0),
    ],
)
def test_a_runs_step_error_is_that_of_the_mean_of_its_steps(steps: list[float], error: float) -> None:
    assert step_errors([[1.0, 1.0], steps, []]) == pytest.approx((0.0, error, 0.0))
