"""A record is what one run stores: the schema of ``result.json``, version 1. Pure.

Units are in the names (``_sec``, ``_bytes``, ``_gb`` = 1e9 bytes); values that can't be known are null. A
record describes the whole job, so ``rank`` is 0; ``per_rank`` has what each rank measured.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from checkpointing.stores.bounded import excess_of

SCHEMA_VERSION = 1
# Of each 64-bit integer, and of its sign.
_MOST_DIGITS = 20


class RecordError(Exception):
    """The bytes are not a result that this version can read. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """Why a run has no numbers. ``log_tail`` has at most the last 20 lines.

    ``nodes`` are those of ``ranks``, or all nodes of the run if no rank is named; results of older versions
    have none.
    """

    reason: str
    phase: str | None
    wanted_bytes: int | None
    ranks: tuple[int, ...]
    log_tail: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """The accelerator of rank 0, and how many distinct devices took part."""

    name: str | None
    count: int
    memory_bytes: int | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """This section says what the run was asked to do, beyond what the columns say."""

    parameters: int
    tokens_per_step: int
    sync: str
    max_s: float | None
    seed: int
    isolation: str
    optimizer: dict[str, float]
    spread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceRecord:
    """Durations are percentiles over steps, in seconds, of the slowest rank's time in each step.
    ``window_sec`` is the slowest rank's total.
    """

    window_sec: float
    p50_sec: float
    p90_sec: float
    p95_sec: float
    p99_sec: float
    min_sec: float
    max_sec: float
    cv: float | None
    micro_step_time_sec: float
    tokens_per_sec_per_device: float
    setup_sec: float
    warmup_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Accelerator memory, as maximum and minimum over ranks (null on a CPU), and growth of host memory."""

    peak_allocated_bytes_max: int | None
    peak_allocated_bytes_min: int | None
    peak_reserved_bytes_max: int | None
    device_used_bytes_max: int | None
    allocator_retries: int | None
    host_peak_growth_bytes_max: int
    predicted_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRecord:
    """The devices' telemetry showed this in the window: energy of all devices, limits and clocks of the
    worst.

    ``energy_joules`` is null unless each device's counter agrees with its power within 10 %. ``throttled``
    has, for each reason, the percentage of the samples that were throttled.
    """

    energy_joules: float | None = None
    energy_integrated_joules: float | None = None
    energy_joules_per_token: float | None = None
    power_watts_mean: float | None = None
    power_cap_watts: float | None = None
    power_cap_default_watts: float | None = None
    clock_mhz_min: float | None = None
    clock_mhz_median: float | None = None
    memory_clock_mhz_median: float | None = None
    temperature_c_max: float | None = None
    throttled_pct: float | None = None
    throttled: dict[str, float] = field(default_factory=dict)
    ecc_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecord:
    """Losses of the window, which begins where the warm-up ended, and the loss at one step that all runs of a
    sweep share.
    """

    first: float
    last: float
    median_last_tenth: float
    reference_step: int
    reference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksRecord:
    """Each rank measured this in the window: one list per column, rank 0 first. ``node`` holds the beginning
    of each node's id.
    """

    node: tuple[str, ...]
    total_sec: tuple[float, ...]
    p50_sec: tuple[float, ...]
    p95_sec: tuple[float, ...]
    max_sec: tuple[float, ...]
    mean_loss: tuple[float, ...]
    peak_allocated_bytes: tuple[int | None, ...]
    host_peak_growth_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """The steps that were profiled after the window; if there is a ``problem``, all else is null.

    Shares are of the profiled time, 0 to 1: means over ranks, of exposed communication also the least and
    the most of any rank. ``operation_*`` are rank 0's, one list per column, the longest first. ``trace`` is
    a file beside the result; if it is null, ``trace_problem`` says why.
    """

    problem: str | None = None
    basis: str | None = None
    steps: int | None = None
    step_sec: float | None = None
    communication_share: float | None = None
    exposed_communication_share: float | None = None
    exposed_communication_share_min: float | None = None
    exposed_communication_share_max: float | None = None
    data_wait_share: float | None = None
    device_idle_share: float | None = None
    operation_names: tuple[str, ...] = ()
    operation_shares: tuple[float, ...] = ()
    operation_calls: tuple[float, ...] = ()
    operation_sec: tuple[float, ...] = ()
    trace: str | None = None
    trace_bytes: int | None = None
    trace_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecord:
    """The environment is what the numbers depend on besides the recipe. ``source_digest`` identifies our
    code. ``fingerprint`` has everything else that was found to move results, as texts by name.
    """

    python: str
    torch: str
    packages: dict[str, str]
    collectives: str
    variables: dict[str, str]
    commit: str | None
    source_digest: str
    fingerprint: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearchRecord:
    """How the micro-batch was found, in a run of a cell that asks for the largest that fits.

    ``question`` is equal in all runs with the same answer. ``fitted`` and ``failed`` are what was tried.
    ``is_over``: nothing is left to try. ``num_trials`` is 0 in a run that took the answer of ``found_by``.
    """

    asked: str
    question: str
    num_trials: int
    smallest_failed: int | None
    fitted: tuple[int, ...]
    failed: tuple[int, ...]
    is_over: bool = False
    found_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One attempt at one run of one cell. Everything measured is null unless ``status`` is ``ok``."""

    schema_version: int = SCHEMA_VERSION
    sweep: str
    cell_id: str
    run_id: str
    repeat: int
    session: int = 1
    order: int
    attempt: int
    group: str
    vendor: str | None
    simulated: bool
    model: str
    strategy: str
    world_size: int
    rank: int = 0
    seq_len: int
    tier: str | None
    precision: str
    activation_checkpointing: str = "none"
    cross_entropy: str = "whole"
    compile: str = "none"
    attention: str = "auto"
    fp8: str = "none"
    offload: str = "none"
    shard_within: int | None = None
    deterministic: bool = False
    per_device_batch: int
    grad_accum: int
    rung: int | None = None
    batch_search: BatchSearchRecord | None = None
    status: str
    error: ErrorRecord | None
    started_at: str
    finished_at: str
    timing_unit: str = "optimizer_step"
    steps: int | None = None
    warmup_steps: int | None = None
    warmup_rule: str | None = None
    recompilations: int | None = None
    attention_kernel: str | None = None
    tokens_per_sec: float | None = None
    mean_step_time_sec: float | None = None
    mean_loss: float | None = None
    peak_vram_gb: float | None = None
    h2d_gbps_per_gpu: float | None = None
    scaling_efficiency_pct: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_of_bf16_peak: float | None = None
    flops_formula: str
    flops_per_token: float
    recomputed_flops_per_token: float = 0.0
    peak_flops: float | None = None
    peak_flops_source: str | None = None
    device_memory_bytes: int | None = None
    platform: str | None = None
    gpu_info: DeviceRecord | None = None
    training_config: ConfigRecord
    performance_metrics: PerformanceRecord | None = None
    memory_metrics: MemoryRecord | None = None
    loss_metrics: LossRecord | None = None
    power_metrics: PowerRecord | None = None
    profile: ProfileRecord | None = None
    metrics: dict[str, float | None]
    per_rank: RanksRecord | None = None
    raw_step_times: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    environment: EnvironmentRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> bytes:
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False).encode() + b"\n"


_SECTIONS = {
    "error": ErrorRecord,
    "gpu_info": DeviceRecord,
    "training_config": ConfigRecord,
    "performance_metrics": PerformanceRecord,
    "memory_metrics": MemoryRecord,
    "loss_metrics": LossRecord,
    "power_metrics": PowerRecord,
    "profile": ProfileRecord,
    "per_rank": RanksRecord,
    "environment": EnvironmentRecord,
    "batch_search": BatchSearchRecord,
}


def read_record(data: bytes) -> RunRecord:
    """Reads a record. Keys that this version doesn't know are ignored. Raises ``RecordError``."""
    check_extent(data)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON ({error})") from None
    check_version(found)
    try:
        return _record(found)
    except (TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"not a run's result ({error})") from None


def check_extent(data: bytes) -> None:
    """Raises ``RecordError`` for JSON that would take far more memory than it has bytes."""
    if excess := excess_of(data):
        raise RecordError(f"holds {excess}")


def parsed(data: bytes) -> Any:
    """Parses JSON that anybody may have written, also NaN, which is not valid JSON. Refuses halves of
    surrogate pairs, which no file of a report can hold. Raises ``RecordError``.
    """
    check_extent(data)
    try:
        found = json.loads(data, parse_int=_whole)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"not JSON in UTF-8 ({error})") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON ({error})") from None
    return found


def _whole(text: str) -> float:
    """An integer that has more digits than 64 bits is a float, as for faster parsers, since no float may hold
    it.
    """
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


def check_version(found: Any) -> None:
    """Raises ``RecordError`` unless ``found``, parsed JSON, is an object of this schema's version."""
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"schema_version {version!r}, expected {SCHEMA_VERSION}")


def _record(found: dict[str, Any]) -> RunRecord:
    values = _known(RunRecord, found)
    for name, section in _SECTIONS.items():
        if values.get(name) is not None:
            values[name] = section(**_known(section, values[name]))
    return RunRecord(**values)


def _known(section: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(section)}
    known = ((name, value) for name, value in found.items() if name in names)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known}
