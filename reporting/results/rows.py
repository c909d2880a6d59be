"""A row is one run as one flat line of the table, measured by us or imported from older results. Pure.

Values that can't be known are None, and every float is finite. Units are in the names; ``columns`` says what
each column means. The first columns are those of the older documents' CSV, in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from operator import contains
from typing import Any, NoReturn

from reporting.results.columns import TABLES
from reporting.results.records import RecordError
from reporting.results.redaction import without_credentials, without_secrets


# Rows are never changed, but not frozen: frozen ones take twice as long to make, and reports make very many.
@dataclass(slots=True, kw_only=True)
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
    session: int | None = None
    order: int | None = None
    attempt: int = 1
    group: str | None = None
    vendor: str | None = None
    simulated: bool = False
    model: str | None = None
    precision: str | None = None
    activation_checkpointing: str | None = None
    cross_entropy: str | None = None
    compile: str | None = None
    attention: str | None = None
    fp8: str | None = None
    offload: str | None = None
    shard_within: int | None = None
    deterministic: bool | None = None
    micro_batch_asked: str | None = None
    micro_batch_trials: int | None = None
    micro_batch_failed: int | None = None
    rung: int | None = None
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
    attention_kernel: str | None = None
    recompilations: int | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_of_bf16_peak: float | None = None
    flops_formula: str | None = None
    flops_per_token: float | None = None
    recomputed_flops_per_token: float | None = None
    peak_flops: float | None = None
    peak_flops_source: str | None = None
    measured_peak_flops: float | None = None
    parameters: int | None = None
    tokens_per_step: int | None = None
    seed: int | None = None
    sync: str | None = None
    isolation: str | None = None
    spread: bool | None = None
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
    energy_joules: float | None = None
    energy_integrated_joules: float | None = None
    power_watts_mean: float | None = None
    power_cap_watts: float | None = None
    power_cap_default_watts: float | None = None
    clock_mhz_min: float | None = None
    clock_mhz_median: float | None = None
    memory_clock_mhz_median: float | None = None
    temperature_c_max: float | None = None
    throttled_pct: float | None = None
    throttled: tuple[tuple[str, float], ...] = ()
    ecc_errors: int | None = None
    profile_problem: str | None = None
    profile_basis: str | None = None
    profile_steps: int | None = None
    profile_step_sec: float | None = None
    profile_communication_share: float | None = None
    profile_exposed_communication_share: float | None = None
    profile_exposed_communication_share_min: float | None = None
    profile_exposed_communication_share_max: float | None = None
    profile_data_wait_share: float | None = None
    profile_device_idle_share: float | None = None
    profile_operation_names: tuple[str, ...] = ()
    profile_operation_shares: tuple[float, ...] = ()
    profile_operation_calls: tuple[float, ...] = ()
    profile_operation_sec: tuple[float, ...] = ()
    profile_trace: str | None = None
    profile_trace_bytes: int | None = None
    profile_trace_problem: str | None = None
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
    fingerprint: tuple[tuple[str, str], ...] = ()
    optimizer: tuple[tuple[str, float], ...] = ()
    commit: str | None = None
    source_digest: str | None = None
    metrics: tuple[tuple[str, float | None], ...] = ()
    raw_step_times: tuple[float, ...] = ()

    @property
    def has_fp8(self) -> bool:
        return self.fp8 not in (None, "none")

    @property
    def product_dtype(self) -> str | None:
        """The dtype in which the blocks multiply, by whose peak ``mfu`` is computed."""
        return "fp8" if self.has_fp8 else self.precision

    @property
    def is_emulated(self) -> bool:
        """Whether it is simulated only because a CPU stood in for a device's fp8. Its group is real."""
        return self.simulated and self.has_fp8 and self.vendor == "cpu"


NAMES = tuple(field.name for field in fields(Row))


def row_from(found: Mapping[str, Any]) -> Row:
    """Makes a row. NaN, which other tools write, becomes None. Raises ``RecordError`` for a value that its
    column can't hold.
    """
    values = {name: value for name, value in found.items() if value is not None}
    # One check for all values, because reports read very many rows.
    if not all(map(contains, map(_ALLOWED.__getitem__, values), map(type, values.values()))):
        _raise_wrong_type(next(item for item in values.items() if type(item[1]) not in _ALLOWED[item[0]]))
    for name in _ELEMENTS.keys() & values.keys():
        found_types = {*map(type, values[name])}
        if not found_types <= _ELEMENTS[name]:
            _raise_wrong_type((name, values[name]))
        if int in found_types and any(type(one) is int and abs(one) > _MANY for one in values[name]):
            _raise_too_large(name, values[name])
    for name in _PAIRS & values.keys():
        _check_pairs(name, values[name])
    for name in _NEVER_NEGATIVE:
        if (size := values.get(name)) is not None and size < 0:
            raise RecordError(f"{name} is {size!r:.60}, which can't be")
    # A sum is finite only if all its terms are.
    if not isfinite(sum([value for value in values.values() if type(value) is float])):
        values = {
            name: value for name, value in values.items() if type(value) is not float or isfinite(value)
        }
    sizes = [abs(value) for value in values.values() if value and type(value) in (int, float)]
    if sizes and (max(sizes) > _MANY or min(sizes) < _LEAST_FLOAT):
        _check_sizes(values)
    return Row(**_redacted(values))


def _redacted(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces secrets, which results of older versions and of other tools may hold."""
    for name in _PAIRS_OF_TEXTS & values.keys():
        values[name] = without_secrets(values[name])
    for name in _MESSAGES & values.keys():
        values[name] = without_credentials(values[name])
    for name in _LINES & values.keys():
        values[name] = tuple(map(without_credentials, values[name]))
    return values


def _check_sizes(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if type(value) is float:
            most: float = _MOST_FLOAT
        elif type(value) is int:
            most = _MOST_INT if _KINDS[name] is int else _MANY
        else:
            continue
        if abs(value) > most:
            _raise_too_large(name, value)
        if 0 < abs(value) < _LEAST_FLOAT:
            raise RecordError(f"{name} is {value!r}, which is too small")


def _check_pairs(name: str, pairs: tuple[tuple[str, Any], ...]) -> None:
    allowed = _TEXT if name in _PAIRS_OF_TEXTS else _PLAIN
    for key, value in pairs:
        if type(value) not in allowed:
            expected = "text" if name in _PAIRS_OF_TEXTS else "text or a number"
            raise RecordError(f"{key} of {name} is {value!r:.60}, expected {expected}")


def _raise_too_large(name: str, value: object) -> NoReturn:
    raise RecordError(f"{name} is {value!r:.60}, which is too large")


def _raise_wrong_type(item: tuple[str, Any]) -> NoReturn:
    name, value = item
    raise RecordError(f"{name} is {value!r:.60}, expected {_KINDS[name].__name__}")


def kind_of(name: str) -> type:
    """Returns the class of a column's values other than None."""
    return _KINDS[name]


_CLASSES: Mapping[str, type] = {
    "text": str, "int": int, "float": float, "bool": bool, "texts": tuple, "floats": tuple, "pairs": tuple,
}  # fmt: skip
# What may stand in a tuple. A float may be written as a whole number.
_CLASSES_IN: Mapping[str, set[type]] = {"texts": {str}, "floats": {float, int}, "pairs": {tuple}}
_KINDS = {column.name: _CLASSES[column.kind] for column in TABLES["metrics"]}
_ALLOWED = {name: frozenset({float, int} if kind is float else {kind}) for name, kind in _KINDS.items()}
_PAIRS = frozenset(column.name for column in TABLES["metrics"] if column.kind == "pairs")
_PAIRS_OF_TEXTS = frozenset({"packages", "variables", "fingerprint"})
# What says in words what happened.
_MESSAGES = frozenset({"error_reason", "profile_problem", "profile_trace_problem"})
_LINES = frozenset({"error_log_tail", "warnings"})
_TEXT: frozenset[type] = frozenset({str})
_PLAIN: frozenset[type] = frozenset({str, int, float, bool, type(None)})
# Every whole number up to here is exactly one float. An integer column holds more, and so does a float, whose
# square must still be one.
_MANY, _MOST_INT, _MOST_FLOAT = 2**53, 2**63 - 1, 1e100
# A cost per token follows from them.
_NEVER_NEGATIVE = (
    "world_size", "seq_len", "per_device_batch", "grad_accum", "tokens_per_step", "energy_joules_per_token",
)  # fmt: skip
# Its inverse must be a number, too.
_LEAST_FLOAT = 1e-100
_ELEMENTS = {
    column.name: _CLASSES_IN[column.kind] for column in TABLES["metrics"] if column.kind in _CLASSES_IN
}
