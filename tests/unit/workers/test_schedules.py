"""The learning rate's way from step to step: where it begins, that it never jumps, where it ends."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.training.task.job import OptimizerConfig, Schedule
from jobs.training.task.schedules import lr_factor

WARMUP = st.integers(0, 50)
FALLING: st.SearchStrategy[Schedule] = st.sampled_from(["linear", "cosine"])


@st.composite
def falling(draw: st.DrawFn) -> OptimizerConfig:
    warmup = draw(WARMUP)
    return OptimizerConfig(
        schedule=draw(FALLING),
        warmup_steps=warmup,
        decay_steps=warmup + draw(st.integers(1, 500)),
        min_lr_ratio=draw(st.floats(0.0, 1.0)),
    )


def course(config: OptimizerConfig, num_updates: int) -> list[float]:
    return [lr_factor(number, config) for number in range(num_updates)]


@given(warmup=WARMUP, number=st.integers(0, 10**6))
def test_what_is_constant_is_to_the_bit_what_it_was_before_there_were_schedules(
    warmup: int, number: int
) -> None:
    config = OptimizerConfig(warmup_steps=warmup)
    assert lr_factor(number, config) == min(1.0, (number + 1) / max(1, warmup))


@given(config=falling())
def test_it_rises_to_all_of_it_then_falls_and_then_stays(config: OptimizerConfig) -> None:
    assert config.decay_steps is not None
    found = course(config, config.decay_steps + 10)
    peak = config.warmup_steps
    assert found[: peak + 1] == sorted(found[: peak + 1])
    assert found[peak] == pytest.approx(1.0)
    assert found[peak:] == sorted(found[peak:], reverse=True)
    assert found[config.decay_steps :] == [config.min_lr_ratio] * 10


@given(config=falling())
def test_it_is_never_nothing_nor_more_than_all_before_it_ends(config: OptimizerConfig) -> None:
    assert config.decay_steps is not None
    found = course(config, config.decay_steps)
    assert all(0.0 < one <= 1.0 for one in found)
    assert min(found[config.warmup_steps :]) >= config.min_lr_ratio


@given(config=falling())
def test_it_never_jumps(config: OptimizerConfig) -> None:
    assert config.decay_steps is not None
    found = course(config, config.decay_steps + 1)
    falls = [before - after for before, after in pairwise(found)]
    # A cosine falls fastest half way, by pi/2 of what a line falls.
    fastest = 1.6 * (1.0 - config.min_lr_ratio) / (config.decay_steps - config.warmup_steps)
    assert max(falls[config.warmup_steps :]) <= fastest + 1e-12


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schedule": "linear"}, [0.5, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]),
        ({"schedule": "cosine"}, [0.5, 1.0, 1.0, 0.868198, 0.55, 0.231802, 0.1, 0.1]),
        ({"schedule": "cosine", "warmup_steps": 0}, [1.0, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1, 0.1]),
    ],
)
def test_it_is_what_one_computes_by_hand(fields: dict[str, Any], expected: list[float]) -> None:
    config = OptimizerConfig(**{"warmup_steps": 2, "decay_steps": 6, "min_lr_ratio": 0.1} | fields)
    assert course(config, 8) == pytest.approx(expected, abs=1e-6)
