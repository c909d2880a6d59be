"""This module computes intervals, tests and verdicts. The run is the unit of replication, not the step.

Values are positive, one per run. Ratios are of throughputs, the other's over the baseline's, so that above 1
is faster. Everything here is deterministic: the draws come from one fixed seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import erfc, exp, log, log1p, pi, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from reporting.analysis.findings import Estimate, Verdict
from reporting.results.formulas import coefficient_of_variation

THRESHOLD = 0.02
NUM_DRAWS = 10_000
FEWEST_RUNS = 4
# An exact p counts all ways to assign runs to the two sides. With this many per side that takes a tenth of a
# second.
MOST_RUNS_EXACT = 50
_SEED = 20_260_101
_OUTLIER_SHARE, _SPREAD = 0.05, 0.10
_MOST_EXPONENT = 100.0
# Estimates of fewer runs have no interval.
_LEAST_RUNS = 3
# With more runs than this, a partial sort is faster than comparing neighbours.
_MOST_COMPARED = 40
_NORMAL = 1.959964
_ROUNDING = 1e-24
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)

Numbers = NDArray[np.float32]
# The throughputs of one side, one per run.
Sample = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A comparison of two samples. ``ratio`` is None if a side is empty; its interval is None too if a side
    has fewer than four runs.

    ``p`` is Mann-Whitney's. ``p_slower`` is Welch's, on the logarithm, that the other is not slower. Both are
    adjusted over all comparisons.
    """

    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    p_slower_adjusted: float | None
    cliffs_delta: float | None
    verdict: Verdict


def estimate(values: Sequence[float]) -> Estimate | None:
    """Returns the median over runs with Student's interval for it, on the logarithm; None without values.

    Its half width is ``t * s * sqrt(pi / 2 / n)``, the median's standard error under normal noise. This
    interval holds the truth in 96 to 98 % of cases with 3 to 20 runs. The bootstrap's interval can't leave
    the range of the values, and holds the truth in 75 % of cases with 3 runs. With 2 runs the interval would
    be too wide to be useful, so there is none.
    """
    if not values:
        return None
    middle, num_runs = median(values), len(values)
    if num_runs < _LEAST_RUNS:
        cv = coefficient_of_variation(values)
        return Estimate(median=middle, low=None, high=None, cv=cv, num_runs=num_runs)
    spread = float(np.std(np.log(values), ddof=1))
    factor = exp(min(student(num_runs - 1) * spread * sqrt(pi / 2 / num_runs), _MOST_EXPONENT))
    return Estimate(
        median=middle,
        low=middle / factor,
        high=middle * factor,
        cv=coefficient_of_variation(values),
        num_runs=num_runs,
    )


def contrasts(
    pairs: Sequence[tuple[Sample, Sample]], *, threshold: float = THRESHOLD
) -> tuple[Contrast, ...]:
    """Compares the other (second) with the baseline (first) of each pair. p is adjusted over all pairs."""
    tests = [mann_whitney(baseline, other) for baseline, other in pairs]
    adjusted = benjamini_hochberg(tests)
    slower = benjamini_hochberg([welch_slower(baseline, other) for baseline, other in pairs])
    return tuple(
        _contrast(baseline, other, p, p_adjusted, p_slower, threshold)
        for (baseline, other), p, p_adjusted, p_slower in zip(pairs, tests, adjusted, slower, strict=True)
    )


def _contrast(
    baseline: Sample,
    other: Sample,
    p: float | None,
    p_adjusted: float | None,
    p_slower_adjusted: float | None,
    threshold: float,
) -> Contrast:
    ratio = low = high = None
    if baseline and other:
        ratio = median(other) / median(baseline)
    if min(len(baseline), len(other)) >= FEWEST_RUNS:
        low, high = ratio_interval(baseline, other)
    return Contrast(
        ratio=ratio,
        low=low,
        high=high,
        p=p,
        p_adjusted=p_adjusted,
        p_slower_adjusted=p_slower_adjusted,
        cliffs_delta=cliffs_delta(baseline, other),
        verdict=verdict(low, high, threshold),
    )


def verdict(low: float | None, high: float | None, threshold: float = THRESHOLD) -> Verdict:
    """Decides by a ratio's interval; a missing interval means that there were too few repeats."""
    if low is None or high is None:
        return "too few repeats"
    if 1 - threshold <= low and high <= 1 + threshold:
        return "equivalent"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "inconclusive"


def ratio_interval(baseline: Sample, other: Sample) -> tuple[float, float]:
    """Returns the middle 95 % of the bootstrapped ratio of medians, in which runs are resampled.

    This is the percentile interval. A run's value holds the noise of its steps already, so steps are not
    resampled. The interval is widened, on the logarithm, where the plain one is known to be too narrow:

    * By sqrt(4 / 3) if a side has 4 runs, because so small a resample leaves the middle too seldom.
    * If one side is noisier than the other, its runs alone say how wide the interval is. It is then wider by
      as much as Student's t has with Welch's degrees of freedom.

    On simulated runs it holds the truth in 95 to 97 % of cases, with 4 to 20 runs a side and up to three
    times the noise on one of them; equal sides are called different in at most 5 %.
    """
    ratio = median(other) / median(baseline)
    low, high = _middle_95_percent(_drawn_medians(other, side=1) - _drawn_medians(baseline, side=0))
    has_few = min(len(baseline), len(other)) == FEWEST_RUNS
    widening = sqrt(FEWEST_RUNS / (FEWEST_RUNS - 1)) if has_few else 1.0
    if (degrees := _welch(baseline, other)[1]) is not None:
        widening *= student(degrees) / student(len(baseline) + len(other) - 2)
    # The draws carry no more digits than these, and further ones would depend on the processor.
    return ratio * round(exp(low * widening), 6), ratio * round(exp(high * widening), 6)


def over_sessions(
    found: Contrast, baseline: Sequence[Sample], other: Sequence[Sample], *, threshold: float = THRESHOLD
) -> Contrast:
    """Widens a contrast's interval to what several sessions on both sides say; each sample is one session's.

    Between sessions machines differ by more than within. So each session's median counts once: the interval
    is Welch's, on the logarithm. It may be narrower by luck, so the plain one is never left.
    """
    if found.ratio is None or found.low is None or found.high is None or min(len(baseline), len(other)) < 2:
        return found
    ours, theirs = [median(session) for session in baseline], [median(session) for session in other]
    parts = [float(np.var(np.log(side), ddof=1)) / len(side) for side in (ours, theirs)]
    _, degrees = _welch(ours, theirs)
    if degrees is None:
        return found
    reach = exp(min(student(max(degrees, 1.0)) * sqrt(sum(parts)), _MOST_EXPONENT))
    low, high = min(found.low, found.ratio / reach), max(found.high, found.ratio * reach)
    return replace(found, low=round(low, 6), high=round(high, 6), verdict=verdict(low, high, threshold))


def welch_slower(baseline: Sample, other: Sample) -> float | None:
    """Returns the one-sided p of Welch's test, on the logarithm, that the other is not slower.

    It is None if a side has fewer than four runs. Student's t becomes a normal number by Wallace's
    approximation.
    """
    if min(len(baseline), len(other)) < FEWEST_RUNS:
        return None
    t, degrees = _welch(baseline, other)
    if degrees is None:
        return 1.0 if t >= 0 else 0.0
    size = (8 * degrees + 1) / (8 * degrees + 3) * sqrt(degrees * log1p(t * t / degrees))
    return erfc((size if t < 0 else -size) / sqrt(2)) / 2


def _welch(baseline: Sample, other: Sample) -> tuple[float, float | None]:
    """Returns Welch's t and degrees of freedom. Without any noise t has the sign of the difference, and the
    degrees are None.
    """
    ours, theirs = np.log(baseline), np.log(other)
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (ours, theirs)]
    difference = float(theirs.mean() - ours.mean())
    # Equal values differ in their last digit.
    if sum(parts) < _ROUNDING:
        return (0.0 if abs(difference) < sqrt(_ROUNDING) else difference), None
    weighted = [part**2 / (len(side) - 1) for part, side in zip(parts, (baseline, other), strict=True)]
    return difference / sqrt(sum(parts)), sum(parts) ** 2 / sum(weighted)


def _drawn_medians(sample: Sample, *, side: int) -> Numbers:
    """Returns the logarithms of the medians of ``NUM_DRAWS`` resamples of the runs, over the runs' own
    median. Each side has its own draws, shared by all cells with as many runs.
    """
    middle = median(sample)
    # Sorted, so that the order in which runs were read does not matter.
    values = np.array([log(value / middle) for value in sorted(sample)], dtype=np.float32)
    return _medians(values.take(_draws(len(sample), side)))


@lru_cache(maxsize=8)
def _draws(num_runs: int, side: int) -> NDArray[np.intp]:
    """Returns which run is at each place of each resample."""
    # numpy promises that this generator's numbers stay the same in all its versions.
    dice = np.random.RandomState([_SEED, num_runs, side])
    return dice.randint(num_runs, size=(num_runs, NUM_DRAWS)).astype(np.intp)


def _medians(resampled: Numbers) -> Numbers:
    """Returns the median of each column. With few rows, neighbours are swapped until the upper half is
    sorted.
    """
    num_runs = len(resampled)
    if num_runs > _MOST_COMPARED:
        return np.asarray(np.median(resampled, axis=0), dtype=np.float32)
    rows: list[Numbers] = list(resampled)
    for num_done in range(num_runs // 2 + 1):
        for one, next_one in pairwise(range(num_runs - num_done)):
            rows[one], rows[next_one] = (
                np.minimum(rows[one], rows[next_one]),
                np.maximum(rows[one], rows[next_one]),
            )
    middle = rows[num_runs // 2]
    return middle if num_runs % 2 else (rows[num_runs // 2 - 1] + middle) * np.float32(0.5)


def _middle_95_percent(drawn: Numbers) -> tuple[float, float]:
    """Returns percentiles 2.5 and 97.5, interpolated between the closest ranks."""
    places = [percent / 100 * (len(drawn) - 1) for percent in (2.5, 97.5)]
    ranks = [rank for place in places for rank in (int(place), int(place) + 1)]
    ordered = np.partition(drawn, ranks)
    low, high = (
        float(ordered[int(place)]) * (1 - place % 1) + float(ordered[int(place) + 1]) * (place % 1)
        for place in places
    )
    return low, high


def step_errors(runs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Returns each run's standard error of the mean step time, over that mean; 0 if it can't be known."""
    found = np.zeros(len(runs))
    lengths = [len(times) for times in runs]
    for length in {length for length in lengths if length > 1}:
        places = [place for place, other in enumerate(lengths) if other == length]
        times = np.array([runs[place] for place in places], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[places] = times.std(axis=1) / times.mean(axis=1) / sqrt(length)
    # Positive times can't have a larger error than 1; comparisons with NaN are false, so NaN becomes 0 too.
    return tuple(np.where((found > 0) & (found < 1), found, 0.0).tolist())


def mann_whitney(baseline: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns the exact two-sided p: the share of all assignments of these values with a rank sum at least as
    far from its mean.

    Ties have their mean rank. With more than ``MOST_RUNS_EXACT`` runs on a side p is the normal
    approximation, corrected for ties and continuity. It is None if a side is empty.
    """
    if not baseline or not other:
        return None
    pooled = np.concatenate([baseline, other])
    doubled = _doubled_ranks(pooled)
    observed = int(doubled[: len(baseline)].sum())
    if max(len(baseline), len(other)) > MOST_RUNS_EXACT:
        return _normal_p(doubled, len(baseline), observed)
    return _exact_p(tuple(sorted(doubled.tolist())), len(baseline))[observed]


@lru_cache(maxsize=64)
def _exact_p(doubled_ranks: tuple[int, ...], num_first: int) -> dict[int, float]:
    """Returns the two-sided p for each rank sum of the first side. Rank sums are doubled so that mean ranks
    are whole.
    """
    counts = np.zeros((num_first + 1, sum(doubled_ranks[-num_first:]) + 1))
    counts[0, 0] = 1
    for rank in doubled_ranks:
        # Each value may join every selection without it. numpy reads all counts before it writes any, so none
        # counts twice.
        counts[1:, rank:] += counts[:-1, : counts.shape[1] - rank]
    ways = counts[num_first]
    sums = np.nonzero(ways)[0]
    distance = np.abs(sums - num_first * sum(doubled_ranks) / len(doubled_ranks))
    total = ways.sum()
    return {
        int(rank_sum): min(1.0, float(ways[sums][distance >= own - 1e-9].sum() / total))
        for rank_sum, own in zip(sums, distance, strict=True)
    }


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns twice the mean of the places, counted from 1, that each value has in sorted order."""
    ordered = np.sort(values)
    return np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1


def _normal_p(doubled: NDArray[np.int64], num_first: int, observed: int) -> float:
    total = len(doubled)
    ranks = doubled / 2
    variance = num_first * (total - num_first) / total * float(ranks.var()) * total / (total - 1)
    if variance == 0:
        return 1.0
    away = max(0.0, abs(observed / 2 - num_first * (total + 1) / 2) - 0.5)
    return erfc(away / sqrt(2 * variance))


def benjamini_hochberg(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Adjusts all values that are not None. Of the results below x, the expected share of false ones is at
    most x.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    smallest = 1.0
    for rank, (p, place) in reversed(list(enumerate(known, start=1))):
        smallest = min(smallest, p * (len(known) / rank))
        adjusted[place] = smallest
    return tuple(adjusted)


def cliffs_delta(baseline: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns how much more often a run of the other is faster than one of the baseline than
    slower: -1 to 1.
    """
    if not baseline or not other:
        return None
    wins = sum((new > old) - (new < old) for new in other for old in baseline)
    return wins / (len(other) * len(baseline))


def num_severe_outliers(step_times: Sequence[float]) -> int:
    """Counts a run's steps more than three interquartile ranges below the first quartile or above
    the third.
    """
    if len(step_times) < FEWEST_RUNS:
        return 0
    ordered = np.sort(step_times)
    first, third = np.interp([0.25, 0.75], np.linspace(0, 1, len(ordered)), ordered)
    reach = 3 * (third - first)
    return int(np.sum((ordered < first - reach) | (ordered > third + reach)))


def is_unstable(*, num_outliers: int, num_steps: int, run_medians: Sequence[float]) -> bool:
    """Whether more than 5 % of the steps are severe outliers, or the runs' median step times spread over 10
    %.
    """
    if num_steps and num_outliers / num_steps > _OUTLIER_SHARE:
        return True
    if not run_medians:
        return False
    return (max(run_medians) - min(run_medians)) / median(run_medians) > _SPREAD


def line_at(xs: Sequence[float], ys: Sequence[float], x: float) -> tuple[float, float, float]:
    """Returns what the straight line through at least three points says at ``x``, and between which bounds a
    new value lies there with 95 % confidence.
    """
    places, values, count = np.array(xs), np.array(ys), len(xs)
    slope, height = np.polyfit(places, values, 1)
    error = sqrt(float(((values - (height + slope * places)) ** 2).sum()) / (count - 2))
    away = float((x - places.mean()) ** 2 / ((places - places.mean()) ** 2).sum())
    reach = student(count - 2) * error * sqrt(1 + 1 / count + away)
    middle = float(height + slope * x)
    return middle, middle - reach, middle + reach


def parabola_at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Returns what the parabola through at least three points says at ``x``."""
    return float(np.polyval(np.polyfit(xs, ys, 2), x))


def student(degrees: float) -> float:
    """Returns the 97.5th percentile of Student's t, for at least one degree. From nine degrees on it is
    expanded around the normal distribution's; below, it lies between those of the whole numbers beside it.
    """
    if degrees < len(_STUDENT):
        place = int(degrees)
        below, above = _STUDENT[place - 1 : place + 1]
        return below + (degrees - place) * (above - below)
    z = _NORMAL
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
