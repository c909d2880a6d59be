"""What the numbers mean, against values that others published or that can be checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.training.task.presets import preset
from reporting.results.formulas import (
    coefficient_of_variation,
    flops_per_token,
    model_flops_utilization,
    percentile,
    tokens_per_second,
    weak_scaling_efficiency,
)

H100_BF16 = 989e12
times = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200)


def of_llama_8b() -> float:
    model = preset("llama-3.1-8b")
    return flops_per_token(
        num_matmul_parameters=model.num_matmul_parameters,
        num_layers=model.num_layers,
        attention_size=model.attention_size,
        seq_len=8192,
    )


def of_mpt_7b() -> float:
    return flops_per_token(
        num_matmul_parameters=6_658_859_008, num_layers=32, attention_size=4096, seq_len=2048
    )


def test_llama_8b_costs_58_gigaflops_per_token_at_8192() -> None:
    assert of_llama_8b() / 1e9 == pytest.approx(57.914, abs=5e-4)


@pytest.mark.parametrize(("tokens_per_sec", "mfu"), [(5762, 0.3374), (6667, 0.3904)])
def test_llama_8b_on_one_h100_has_the_published_utilization(tokens_per_sec: float, mfu: float) -> None:
    assert model_flops_utilization(tokens_per_sec, of_llama_8b(), H100_BF16) == pytest.approx(mfu, abs=5e-5)


def test_mpt_7b_has_the_published_rate_and_utilization() -> None:
    assert 10_475 * of_mpt_7b() / 1e12 == pytest.approx(452.25, abs=5e-3)
    assert model_flops_utilization(10_475, of_mpt_7b(), 989.5e12) == pytest.approx(0.4571, abs=5e-5)


def test_without_a_known_peak_there_is_no_utilization() -> None:
    assert model_flops_utilization(5762, of_llama_8b(), None) is None


def test_scaling_from_two_devices_is_against_those_two() -> None:
    """Of these very numbers an older document took the two for one and came to 36.5 %."""
    efficiency = weak_scaling_efficiency(12220.341463838564, 4, 8369.455699192402, 2)
    assert efficiency == pytest.approx(0.730, abs=5e-4)


def test_the_baselines_own_efficiency_is_whole() -> None:
    assert weak_scaling_efficiency(8369.46, 2, 8369.46, 2) == 1


def test_throughput_is_a_ratio_of_sums() -> None:
    assert tokens_per_second(16_384, 100, 48.9) == 16_384 * 100 / 48.9


@given(times, st.floats(0, 100))
def test_a_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9)


@given(st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=100))
def test_the_coefficient_of_variation_is_the_sample_deviation_over_the_mean(values: list[float]) -> None:
    expected = np.std(values, ddof=1) / np.mean(values)
    assert coefficient_of_variation(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_one_value_has_no_variation_to_speak_of() -> None:
    assert coefficient_of_variation([1.0]) is None
    assert coefficient_of_variation([]) is None
