"""One run as one flat row of the table: measured by us, or imported from older results. Pure.

What can't be known is None, and every float is finite. Units are in the names, ``columns`` says what each
means. The first columns are those of the older documents' CSV, in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from reporting.records import RecordError, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    strategy: str | None = None
    world_size: int | None = None
    rank: int = 0
    seq_len: int | None = None
    tier: str | None = None
    steps: int | None = None
    per_device_batch: int | None = None
    grad_accum: int | None = None
    tokens_per_sec: float | None = None
    mean_step_time_sec: float | None = None
    mean_loss: float | None = None
    peak_vram_gb: float | None = None
    h2d_gbps_per_gpu: float | None = None
    scaling_efficiency_pct: float | None = None
    sweep: str | None = None
    cell_id: str | None = None
    run_id: str | None = None
    repeat: int = 0
    order: int | None = None
    attempt: int = 1
    group: str | None = None
    vendor: str | None = None
    simulated: bool = False
    model: str | None = None
    precision: str | None = None
    status: str = "ok"
    error_reason: str | None = None
    error_phase: str | None = None
    error_log_tail: tuple[str, ...] = ()
    started_at: str | None = None
    finished_at: str | None = None
    timing_unit: str = "unknown"
    source: str
    imported: bool = False
    warnings: tuple[str, ...] = ()
    scaling_baseline_world_size: int | None = None
    tokens_per_sec_per_device: float | None = None
    window_sec: float | None = None
    step_time_p50_sec: float | None = None
    step_time_p90_sec: float | None = None
    step_time_p95_sec: float | None = None
    step_time_p99_sec: float | None = None
    step_time_min_sec: float | None = None
    step_time_max_sec: float | None = None
    step_time_cv: float | None = None
    micro_step_time_sec: float | None = None
    setup_sec: float | None = None
    warmup_sec: float | None = None
    warmup_steps: int | None = None
    warmup_rule: str | None = None
    mfu: float | None = None
    flops_formula: str | None = None
    flops_per_token: float | None = None
    peak_flops: float | None = None
    peak_flops_source: str | None = None
    measured_peak_flops: float | None = None
    parameters: int | None = None
    tokens_per_step: int | None = None
    seed: int | None = None
    sync: str | None = None
    isolation: str | None = None
    peak_allocated_bytes_max: int | None = None
    peak_allocated_bytes_min: int | None = None
    peak_reserved_bytes_max: int | None = None
    device_used_bytes_max: int | None = None
    allocator_retries: int | None = None
    host_peak_growth_bytes_max: int | None = None
    predicted_bytes: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    loss_median_last_tenth: float | None = None
    loss_reference_step: int | None = None
    loss_reference: float | None = None
    rank_total_sec_max: float | None = None
    rank_total_sec_min: float | None = None
    energy_joules_per_token: float | None = None
    platform: str | None = None
    device_name: str | None = None
    device_count: int | None = None
    device_memory_bytes: int | None = None
    driver: str | None = None
    nodes: tuple[str, ...] = ()
    python: str | None = None
    torch: str | None = None
    collectives: str | None = None
    packages: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    optimizer: tuple[tuple[str, float], ...] = ()
    commit: str | None = None
    source_digest: str | None = None
    metrics: tuple[tuple[str, float | None], ...] = ()
    raw_step_times: tuple[float, ...] = ()


NAMES = tuple(field.name for field in fields(Row))


def row_of(record: RunRecord, source: str) -> Row:
    """``source`` is the place of the result file in its store. Raises ``RecordError``."""
    if record.status is None:
        raise RecordError("not a run's result (without a status)")
    try:
        return row_from({**_flat(record), "source": source})
    except (TypeError, AttributeError, ValueError) as error:
        raise RecordError(f"not a run's result ({error})") from None


def row_from(found: Mapping[str, Any]) -> Row:
    """Raises ``RecordError`` for a value that its column can't hold. NaN, as others write it, is None."""
    values: dict[str, Any] = {}
    for name, value in found.items():
        if value is None or (isinstance(value, float) and not isfinite(value)):
            continue
        kind = kind_of(name)
        if not _fits(value, kind):
            raise RecordError(f"{name} is {value!r}, expected {kind.__name__}")
        values[name] = float(value) if kind is float else value
    return Row(**values)


def kind_of(name: str) -> type:
    """The class of a column's values, besides None."""
    return _KINDS[name]


def _fits(value: Any, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _kind(annotation: Any) -> type:
    if isinstance(annotation, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    kind = get_origin(annotation) or annotation
    assert isinstance(kind, type)
    return kind


_KINDS = {field.name: _kind(field.type) for field in fields(Row)}
# Columns of the same name in a result; all others come from its sections.
_PLAIN = tuple(name for name in NAMES if name in {field.name for field in fields(RunRecord)})


def _flat(record: RunRecord) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    if record.error:
        found["error_reason"] = record.error.reason
        found["error_phase"] = record.error.phase
        found["error_log_tail"] = record.error.log_tail
    found |= _of_config(record) | _of_performance(record) | _of_memory(record) | _of_losses(record)
    found |= _of_ranks(record) | _of_environment(record)
    found["metrics"] = _pairs(record.metrics)
    return found


def _of_config(record: RunRecord) -> dict[str, Any]:
    config = record.training_config
    return {
        "parameters": config.parameters,
        "tokens_per_step": config.tokens_per_step,
        "seed": config.seed,
        "sync": config.sync,
        "isolation": config.isolation,
        "optimizer": _pairs(config.optimizer),
    }


def _of_performance(record: RunRecord) -> dict[str, Any]:
    found = record.performance_metrics
    if found is None:
        return {}
    return {
        "window_sec": found.window_sec,
        "step_time_p50_sec": found.p50_sec,
        "step_time_p90_sec": found.p90_sec,
        "step_time_p95_sec": found.p95_sec,
        "step_time_p99_sec": found.p99_sec,
        "step_time_min_sec": found.min_sec,
        "step_time_max_sec": found.max_sec,
        "step_time_cv": found.cv,
        "micro_step_time_sec": found.micro_step_time_sec,
        "tokens_per_sec_per_device": found.tokens_per_sec_per_device,
        "setup_sec": found.setup_sec,
        "warmup_sec": found.warmup_sec,
    }


def _of_memory(record: RunRecord) -> dict[str, Any]:
    found = record.memory_metrics
    if found is None:
        return {}
    return {field.name: getattr(found, field.name) for field in fields(found)}


def _of_losses(record: RunRecord) -> dict[str, Any]:
    found = record.loss_metrics
    if found is None:
        return {}
    return {f"loss_{field.name}": getattr(found, field.name) for field in fields(found)}


def _of_ranks(record: RunRecord) -> dict[str, Any]:
    found = record.per_rank
    if found is None:
        return {}
    return {
        "nodes": tuple(dict.fromkeys(found.node)),
        "rank_total_sec_max": max(found.total_sec, default=None),
        "rank_total_sec_min": min(found.total_sec, default=None),
    }


def _of_environment(record: RunRecord) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if record.gpu_info:
        found |= {
            "device_name": record.gpu_info.name,
            "device_count": record.gpu_info.count,
            "driver": record.gpu_info.driver,
        }
    if environment := record.environment:
        found |= {
            "python": environment.python,
            "torch": environment.torch,
            "collectives": environment.collectives,
            "packages": _pairs(environment.packages),
            "variables": _pairs(environment.variables),
            "commit": environment.commit,
            "source_digest": environment.source_digest,
        }
    return found


def _pairs(found: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(found.items()))
