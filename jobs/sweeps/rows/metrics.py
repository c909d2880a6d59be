"""User-defined metrics for every result: add a function and a line in ``METRICS``. Pure.

A metric gets the recipe and the measurement, on the driver, after the run. It returns None where the number
has no meaning. ``CONTRIBUTING.md`` shows an example.
"""

from collections.abc import Callable

from jobs.training.task.job import Recipe
from jobs.training.task.measurement import Measurement
from reporting.results.formulas import percentile

Metric = Callable[[Recipe, Measurement], float | None]


def straggler_ratio(_recipe: Recipe, measured: Measurement) -> float | None:
    """The slowest rank's median step time over the fastest rank's; 1.0 means that no rank waits."""
    medians = [rank.p50_s for rank in measured.ranks]
    return max(medians) / min(medians) if len(medians) > 1 else None


def tail_ratio(_recipe: Recipe, measured: Measurement) -> float | None:
    """The 99th percentile of the step times over the 50th: how slow the slow steps are."""
    return percentile(measured.step_times_s, 99) / percentile(measured.step_times_s, 50)


METRICS: dict[str, Metric] = {
    "straggler_ratio": straggler_ratio,
    "tail_ratio": tail_ratio,
}
