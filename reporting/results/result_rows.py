"""This module reads a ``result.json`` as a row, fast: reports read tens of thousands of them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from reporting.results.records import (
    EnvironmentRecord,
    LossRecord,
    MemoryRecord,
    PowerRecord,
    ProfileRecord,
    RecordError,
    RunRecord,
    check_extent,
    check_version,
    parsed,
)
from reporting.results.rows import NAMES, Row, kind_of, row_from

# For each section of a result: its keys, and the columns that they go into.
_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "error": {
        **{name: f"error_{name}" for name in ("reason", "phase", "log_tail")},
        "nodes": "nodes",
    },
    "training_config": {
        name: name
        for name in ("parameters", "tokens_per_step", "sync", "seed", "isolation", "spread", "optimizer")
    },
    "performance_metrics": {
        **{f"{kind}_sec": f"step_time_{kind}_sec" for kind in ("p50", "p90", "p95", "p99", "min", "max")},
        "cv": "step_time_cv",
        **{f"{name}_sec": f"{name}_sec" for name in ("window", "micro_step_time", "setup", "warmup")},
        "tokens_per_sec_per_device": "tokens_per_sec_per_device",
    },
    "memory_metrics": {field.name: field.name for field in fields(MemoryRecord)},
    "loss_metrics": {field.name: f"loss_{field.name}" for field in fields(LossRecord)},
    "power_metrics": {field.name: field.name for field in fields(PowerRecord)},
    "profile": {field.name: f"profile_{field.name}" for field in fields(ProfileRecord)},
    "batch_search": {
        "asked": "micro_batch_asked",
        "num_trials": "micro_batch_trials",
        "smallest_failed": "micro_batch_failed",
    },
    "gpu_info": {"name": "device_name", "count": "device_count", "driver": "driver"},
    "environment": {field.name: field.name for field in fields(EnvironmentRecord)},
}
# The number of a round that is no round of ``--best``.
_TRIAL = 0
_TUPLES = [name for name in NAMES if kind_of(name) is tuple]
_PLAIN = sorted({*NAMES} & {field.name for field in fields(RunRecord)})


def row_of(data: bytes, source: str) -> Row:
    """Reads a result as a row. ``source`` is the file's name in its store; unknown keys are ignored. Raises
    ``RecordError``.
    """
    found = _parsed(data)
    check_version(found)
    if not isinstance(found.get("status"), str):
        raise RecordError("not a run's result (without a status)")
    try:
        return row_from({**_flat(found), "source": source})
    except (TypeError, AttributeError, KeyError) as error:
        raise RecordError(f"not a run's result ({error})") from None


def _parsed(data: bytes) -> Any:
    """Parses JSON. The slower parser comes second: it takes what other programs write, too."""
    check_extent(data)
    try:
        return orjson.loads(data)
    except ValueError:
        return parsed(data)


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: found.get(name) for name in _PLAIN}
    for section, columns in _SECTIONS.items():
        if (inner := found.get(section)) is not None:
            for name, column in columns.items():
                values[column] = inner.get(name)
    if _is_trial(found):
        values["rung"] = _TRIAL
    if (ranks := found.get("per_rank")) is not None:
        values["nodes"] = [*dict.fromkeys(ranks["node"])]
        values["rank_total_sec_max"] = max(ranks["total_sec"], default=None)
        values["rank_total_sec_min"] = min(ranks["total_sec"], default=None)
    for name in _TUPLES:
        values[name] = _frozen(values.get(name))
    return values


def _is_trial(found: Mapping[str, Any]) -> bool:
    """Whether the run was only looking for the largest micro-batch, and goes on with that: what it ran out of
    memory with is no result of its cell.
    """
    search = found.get("batch_search")
    return search is not None and found["status"] == "oom" and search.get("is_over") is False


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
