"""This module turns one run that was logged step by step into one row. Pure."""

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

from reporting.results.formulas import coefficient_of_variation, percentile

Points = Sequence[tuple[int, Any]]

_MOST_WARM_UP = 10
_MOST_RAW_TIMES = 10_000
_WARM_UP_RULE = "the first tenth of an imported log, 10 steps at most"
_PERCENTILES = (50, 90, 95, 99)


def run_of_points(series: Mapping[str, Points]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the run's columns, and notes about them for the user.

    A step that was logged twice, as after a restart, counts once: the later value. The first tenth of the
    steps, at most ten, counts as warm-up, because a log does not say where the warm-up ended.
    """
    ordered = {column: _without_repeated_steps(points) for column, points in series.items()}
    steps = sorted({step for points in ordered.values() for step, _ in points})
    if not steps:
        return {}, ()
    num_warm_up = min(_MOST_WARM_UP, max(len(steps) // 10, int(len(steps) > 1)))
    first = steps[num_warm_up]
    kept = {column: [value for step, value in points if step >= first] for column, points in ordered.items()}
    run: dict[str, Any] = {"steps": len(steps) - num_warm_up, "warmup_steps": num_warm_up}
    run["warmup_rule"] = _WARM_UP_RULE
    for column, values in kept.items():
        if values:
            run |= _summary(column, values)
    note = f"over {run['steps']} logged steps; the first {num_warm_up} are taken for warm-up"
    return run, (note,)


def _without_repeated_steps(points: Points) -> list[tuple[int, Any]]:
    return sorted(dict(points).items())


def _summary(column: str, values: Sequence[Any]) -> dict[str, Any]:
    match column:
        case "mean_step_time_sec":
            return _of_times(values)
        case "mean_loss":
            return _of_losses(values)
        case "tokens_per_sec" | "tokens_per_sec_per_device":
            # All steps have equally many tokens, so the overall rate is the harmonic mean.
            slow = [value for value in values if value > 0]
            return {column: len(slow) / sum(1 / value for value in slow)} if slow else {}
        case "peak_vram_gb" | "device_used_bytes_max":
            return {column: max(values)}
        case "mfu":
            return {column: sum(values) / len(values)}
    return {column: values[-1]}


def _of_times(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean_step_time_sec": sum(values) / len(values),
        "window_sec": sum(values),
        "step_time_min_sec": min(values),
        "step_time_max_sec": max(values),
        "step_time_cv": coefficient_of_variation(values) if any(values) else None,
        "raw_step_times": tuple(round(value, 6) for value in values[:: ceil(len(values) / _MOST_RAW_TIMES)]),
        **{f"step_time_p{percent}_sec": percentile(values, percent) for percent in _PERCENTILES},
    }


def _of_losses(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean_loss": sum(values) / len(values),
        "loss_first": values[0],
        "loss_last": values[-1],
        "loss_median_last_tenth": median(values[-max(1, len(values) // 10) :]),
    }
