"""These formulas define tokens per second, FLOPs, MFU, scaling efficiency and trends. Plain Python.

Symbols: a *step* is an optimizer step. ``tokens_per_step`` = ranks x micro-batch x grad_accum x sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import ceil, floor, sqrt
from statistics import median

FLOPS_FORMULA = "palm_noncausal_v1"

_MOST_BLOCKS = 20
_FEWEST = 4
# Of normal noise, the standard deviation over the median of the distances from the median.
_DEVIATION = 1.4826


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How much a series changes from its beginning to its end, relative to its median; ``error`` is the
    standard error of that.
    """

    change: float
    error: float

    def exceeds(self, share: float, *, errors: float) -> bool:
        """Whether the change is larger than ``share``, and than so many of its standard errors."""
        return abs(self.change) > max(share, errors * self.error)


def trend_of(values: Sequence[float]) -> Trend | None:
    """Returns the trend of at least four positive values in the order of time; None for fewer, or for values
    that are not positive.

    The slope is Theil and Sen's, the median of the slopes between all pairs, so that single slow steps don't
    count. Long series are looked at as medians of twenty blocks.
    """
    if len(values) < _FEWEST or min(values) <= 0:
        return None
    blocks = _blocks(values)
    count, middle = len(blocks), median(blocks)
    slope = median(
        (blocks[later] - blocks[sooner]) / (later - sooner) for sooner, later in combinations(range(count), 2)
    )
    left = [value - slope * place for place, value in enumerate(blocks)]
    level = median(left)
    scatter = _DEVIATION * median(abs(value - level) for value in left)
    span = count - 1
    return Trend(change=slope * span / middle, error=scatter * span * sqrt(12 / (count**3 - count)) / middle)


def _blocks(values: Sequence[float]) -> list[float]:
    count = min(len(values), _MOST_BLOCKS)
    edges = [place * len(values) // count for place in range(count + 1)]
    return [median(values[begin:end]) for begin, end in pairwise(edges)]
