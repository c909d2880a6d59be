"""When a warm-up ends: soon where steps are steady, late where they are not, whatever their noise."""

from collections.abc import Callable
from math import exp
from random import Random
from statistics import fmean

import pytest

from jobs.training.benchmark.timing import has_settled

MOST = 50


def warm_up(step_s: Callable[[int], float], noise: float, seed: int) -> int:
    dice = Random(seed)
    times: list[float] = []
    while len(times) < MOST and not (len(times) >= 10 and has_settled(times)):
        times.append(step_s(len(times)) * exp(dice.gauss(0, noise)))
    return len(times)


def steps(step_s: Callable[[int], float], noise: float) -> float:
    return fmean(warm_up(step_s, noise, seed) for seed in range(60))


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03, 0.3])
def test_steady_steps_are_warm_at_once_however_noisy(noise: float) -> None:
    assert steps(lambda _: 1.0, noise) <= 13


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
@pytest.mark.parametrize(
    ("step_s", "most_left"),
    [
        (lambda step: 1 + exp(-step / 8), 0.02),
        (lambda step: 1 + 0.3 * exp(-step / 5), 0.01),
        (lambda step: 1 + max(0.0, 1 - step / 20), 0.01),
        (lambda step: 1 + exp(-step / 20), 0.10),
    ],
    ids=["twice as slow", "a third slower", "twice as slow on a line", "twice as slow for long"],
)
def test_the_first_measured_step_is_no_longer_slow(
    step_s: Callable[[int], float], most_left: float, noise: float
) -> None:
    left = [step_s(warm_up(step_s, noise, seed)) - 1 for seed in range(60)]
    assert fmean(left) <= most_left


def test_one_quiet_step_ends_nothing() -> None:
    falling = [2.0 - 0.05 * step for step in range(20)]
    assert not any(has_settled(falling[:number]) for number in range(21))
    assert not has_settled([1.0] * 9)
    assert has_settled([1.0] * 10)
