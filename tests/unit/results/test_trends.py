"""Trends of step times: what is one, and what is noise."""

from math import exp
from random import Random

import pytest

from reporting.results.formulas import trend_of


def steps(number: int, at_end: float, noise: float, seed: int = 1) -> list[float]:
    """From 1 to ``at_end``, on a straight line."""
    dice = Random(seed)
    return [(1 + (at_end - 1) * step / (number - 1)) * exp(dice.gauss(0, noise)) for step in range(number)]


@pytest.mark.parametrize("at_end", [0.9, 1.0, 1.1, 2.0])
def test_a_straight_line_has_its_own_change_and_no_error(at_end: float) -> None:
    found = trend_of(steps(11, at_end, 0.0))
    assert found
    assert found.change == pytest.approx((at_end - 1) / (1 + (at_end - 1) / 2))
    assert found.error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("number", [20, 100, 1_000])
def test_noise_is_seldom_a_trend_and_a_trend_is_found_in_it(number: int) -> None:
    flat = [trend_of(steps(number, 1.0, 0.03, seed)) for seed in range(200)]
    assert sum(found.exceeds(0.02, errors=3) for found in flat if found) <= 0.05 * 200
    rising = [trend_of(steps(number, 1.3, 0.03, seed)) for seed in range(100)]
    assert sum(found.exceeds(0.02, errors=3) for found in rising if found) >= 90


def test_single_slow_steps_are_no_trend() -> None:
    values = steps(100, 1.0, 0.01)
    for place in (95, 97, 99):
        values[place] *= 10
    found = trend_of(values)
    assert found and not found.exceeds(0.02, errors=3)


def test_a_series_of_three_has_no_trend() -> None:
    assert trend_of([1.0, 2.0, 3.0]) is None
    assert trend_of([1.0] * 4) is not None
    assert trend_of([0.0] * 40) is trend_of([-1.0, 1.0] * 20) is None
