"""This module decides which of another tool's numbers can be believed, from the numbers alone. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose
from statistics import median
from typing import Any

from reporting.importers.contents import Values
from reporting.results.formulas import weak_scaling_efficiency
from reporting.results.rows import Row
from reporting.results.settings import settings_of

# Relative differences: within the first, two numbers come from one formula; within the second, a table was
# rounded.
_SAME_FORMULA = 1e-9
_ROUNDED = 5e-3
_TIMER = (
    "its timer started before the device was synchronised and stopped without waiting for it: step times may "
    "say when work was handed out, not when it was done"
)


def trusted(values: Values, kind: str) -> dict[str, Any]:
    """Returns the columns that can be kept, with ``timing_unit`` and ``warnings``. ``kind`` is
    ``SourceContents.kind``.
    """
    found = dict(values)
    warnings = [*_complete(found), *_without_derived_copies(found)]
    found["timing_unit"], timing_warnings = _timing(found)
    warnings += timing_warnings
    if kind == "benchmark":
        found["timing_unit"] = "unknown"
        warnings.append(_TIMER)
    if found.pop("scaling_efficiency_pct", None) is not None:
        warnings.append("scaling_efficiency_pct is recomputed, the file's own is left out")
    return {**found, "warnings": tuple(warnings)}


def _complete(found: dict[str, Any]) -> list[str]:
    """Fills in columns that follow from others. Returns a warning for each that is an assumption."""
    warnings = []
    times = found.get("raw_step_times")
    if times and "mean_step_time_sec" not in found:
        found["mean_step_time_sec"] = sum(times) / len(times)
    if "world_size" not in found and "device_count" in found:
        found["world_size"] = found["device_count"]
        warnings.append("world_size is taken from the number of devices")
    return [*warnings, *_fill_throughput(found)]


def _fill_throughput(found: dict[str, Any]) -> list[str]:
    """Fills in the throughput of all devices or of each. Returns a warning if both are there and disagree."""
    size, total = found.get("world_size"), found.get("tokens_per_sec")
    each = found.get("tokens_per_sec_per_device")
    if size and total is None and each is not None:
        found["tokens_per_sec"] = each * size
    elif size and total is not None and each is None:
        found["tokens_per_sec_per_device"] = total / size
    elif (
        size and total is not None and each is not None and not isclose(total, each * size, rel_tol=_ROUNDED)
    ):
        return [
            f"tokens_per_sec is {total:,.6g}, but tokens_per_sec_per_device x {size} is {each * size:,.6g}"
        ]
    return []


def _without_derived_copies(found: dict[str, Any]) -> list[str]:
    """Removes a transfer rate that equals four bytes per token: it was computed, not measured."""
    rate, tokens, size = (found.get(name) for name in ("h2d_gbps_per_gpu", "tokens_per_sec", "world_size"))
    if rate and tokens and size and isclose(rate, 4 * tokens / size / 1e9, rel_tol=_SAME_FORMULA):
        del found["h2d_gbps_per_gpu"]
        return [
            "h2d_gbps_per_gpu is 4 x tokens_per_sec / world_size / 1e9, which is no measurement: left out"
        ]
    return []


def _timing(found: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns what a step is, and warnings. It tests the one identity that must hold between tokens and
    times.
    """
    names = ("tokens_per_sec", "mean_step_time_sec", "world_size", "per_device_batch", "seq_len")
    tokens, seconds, size, batch, length = (found.get(name) for name in names)
    if not (tokens and seconds and size and batch and length):
        return "unknown", []
    per_step, accum = tokens * seconds, found.get("grad_accum") or 1
    micro = size * batch * length
    if isclose(per_step, micro * accum, rel_tol=_ROUNDED):
        return "optimizer_step", []
    if isclose(per_step, micro, rel_tol=_ROUNDED):
        return "unknown", [
            "tokens_per_sec is world_size x per_device_batch x seq_len / mean_step_time_sec: "
            f"grad_accum {accum} is missing from it, or its steps are micro-batches"
        ]
    return "unknown", [
        f"tokens_per_sec x mean_step_time_sec is {per_step:,.0f} tokens, expected {micro * accum:,} per step"
    ]


def with_scaling_efficiency(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Adds scaling efficiency, against the smallest world size of the same configuration, which has 100 %."""
    families: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        families.setdefault(_family(row), []).append(row)
    baselines = {family: _baseline(members) for family, members in families.items()}
    return tuple(_with_efficiency(row, baselines[_family(row)]) for row in rows)


def _family(row: Row) -> tuple[object, ...]:
    return (row.group, row.vendor, row.model, row.strategy, row.seq_len, row.per_device_batch,
            row.grad_accum, row.precision, *settings_of(row).values(), row.device_name)  # fmt: skip


def _baseline(rows: Sequence[Row]) -> tuple[int, float] | None:
    sizes = [row.world_size for row in rows if row.world_size and row.tokens_per_sec]
    if not sizes:
        return None
    smallest = min(sizes)
    rates = [row.tokens_per_sec for row in rows if row.world_size == smallest and row.tokens_per_sec]
    return smallest, median(rates)


def _with_efficiency(row: Row, baseline: tuple[int, float] | None) -> Row:
    if baseline is None or not row.tokens_per_sec or not row.world_size:
        return row
    size, rate = baseline
    if row.world_size == size:
        return replace(row, scaling_efficiency_pct=100.0, scaling_baseline_world_size=size)
    share = weak_scaling_efficiency(row.tokens_per_sec, row.world_size, rate, size)
    return replace(row, scaling_efficiency_pct=share * 100, scaling_baseline_world_size=size)
