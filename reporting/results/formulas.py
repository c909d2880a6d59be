"""These formulas define tokens per second, FLOPs, MFU and scaling efficiency. Plain Python.

Symbols: a *step* is an optimizer step. ``tokens_per_step`` = ranks x micro-batch x grad_accum x sequence.
"""

from collections.abc import Sequence
from math import ceil, floor

FLOPS_FORMULA = "palm_noncausal_v1"


def tokens_per_second(tokens_per_step: int, num_steps: int, window_s: float) -> float:
    """Returns all tokens of the window over the whole window's time: a ratio of sums."""
    return tokens_per_step * num_steps / window_s


def flops_per_token(
    *, num_matmul_parameters: int, num_layers: int, attention_size: int, seq_len: int
) -> float:
    """Returns ``6 N + 12 L d S``, for forward and backward. Attention is not halved for causality."""
    return 6 * num_matmul_parameters + 12 * num_layers * attention_size * seq_len


def recomputed_flops_per_token(
    *, num_recomputed_parameters: int, num_layers: int, attention_size: int, seq_len: int
) -> float:
    """Returns ``2 N + 4 L d S``: a second forward pass of ``L`` layers, by products with ``N`` parameters."""
    return 2 * num_recomputed_parameters + 4 * num_layers * attention_size * seq_len


def model_flops_utilization(
    tokens_per_second_per_device: float, flops_per_token: float, peak_flops: float | None
) -> float | None:
    """Returns achieved over peak FLOP/s as a fraction, or None if the device's peak is unknown.

    With what is computed again in ``flops_per_token`` it is the hardware's utilisation (HFU).
    """
    if peak_flops is None:
        return None
    return tokens_per_second_per_device * flops_per_token / peak_flops


def weak_scaling_efficiency(
    throughput: float, num_devices: int, baseline_throughput: float, baseline_devices: int
) -> float:
    """Returns ``(T_N / N) / (T_b / b)``: throughput per device, against the smallest world size measured."""
    return (throughput / num_devices) / (baseline_throughput / baseline_devices)


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolates linearly between the closest ranks. ``values`` must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = floor(place), ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Returns the sample standard deviation over the mean, or None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return float(variance**0.5 / mean)
