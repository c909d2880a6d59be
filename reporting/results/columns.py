"""This module describes every column of every table that we write: type, unit and meaning. Pure.

Schemas and the glossary are made from ``TABLES``. A part's table has exactly the columns named here, in this
order; ``metrics`` describes the fields of ``rows.Row``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["text", "int", "float", "bool", "texts", "floats", "pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. ``unit`` is empty for a column without a unit. ``s since 1970`` is Unix time by
    the clock of the process that wrote the row.
    """

    name: str
    kind: ColumnKind
    unit: str
    meaning: str


def _columns(*described: tuple[str, ColumnKind, str, str]) -> tuple[Column, ...]:
    return tuple(
        Column(name=name, kind=kind, unit=unit, meaning=meaning) for name, kind, unit, meaning in described
    )


_KEY_COLUMNS = _columns(
    ("run", "text", "", "the long run's name"),
    ("term", "int", "", "which attempt of the run: the number of its lease in the run's log"),
    ("rank", "int", "", "who recorded it; -1 is the driver"),
)

_STEPS = _columns(
    ("step", "int", "steps", "optimizer steps done, this one included"),
    ("position", "int", "samples", "samples of the run's stream consumed by all ranks after this step"),
    ("epoch", "int", "", "the training epoch in which the step ended, counted from 1"),
    ("ended_s", "float", "s since 1970", "when the step was over"),
    ("step_s", "float", "s", "the host's time for the step itself: no waiting for data, saving, evaluating"),
    (
        "data_wait_s",
        "float",
        "s",
        "the host's time for making its samples; a device may have been busy meanwhile",
    ),
    ("tokens", "int", "tokens", "what this rank trained on in the step; all ranks' is the sum"),
    ("loss", "float", "nats/token", "this rank's own mean; null where it was not finite"),
    ("grad_norm", "float", "", "of all ranks' gradients before clipping; rank 0 records it"),
    ("learning_rate", "float", "", "that the update was made with; rank 0 records it"),
    ("memory_bytes", "int", "bytes", "allocated on the device when last looked, at most some seconds before"),
    (
        "val_loss",
        "float",
        "nats/token",
        "over held-out samples and all ranks, where it was evaluated",
    ),
)

_SAMPLES = _columns(
    ("device", "text", "", "the device's name, and its number on the node"),
    (
        "taken_s",
        "float",
        "s since 1970",
        "when it was recorded; the look itself was at most some seconds before",
    ),
    ("utilization_pct", "float", "%", "of the time since the look before in which the device was busy"),
    ("power_watts", "float", "W", "drawn by the device"),
    ("clock_mhz", "float", "MHz", "of its compute clock"),
    ("temperature_c", "float", "°C", "of the chip"),
    ("memory_bytes", "int", "bytes", "allocated by this rank"),
)

# These columns were added later; samples recorded before that have null in them.
_SAMPLES_ADDED = _columns(
    ("energy_joules", "float", "J", "the device's energy counter, from some time in the past"),
    ("power_cap_watts", "float", "W", "what the device may draw"),
    ("memory_clock_mhz", "float", "MHz", "of its memory"),
    ("memory_used_bytes", "int", "bytes", "in use on the device by all, as its driver tells"),
    ("throttle_reasons", "text", "", "why its clock was held back; empty if it wasn't"),
    ("ecc_corrected", "int", "", "memory errors that were corrected, since its driver was loaded"),
    ("ecc_uncorrected", "int", "", "memory errors that were not, since its driver was loaded"),
)

_INCIDENTS = _columns(
    (
        "kind",
        "text",
        "",
        "start, restore, save, failed or skipped save, failure, interruption, warning, dropped records, "
        "stop, restart, give up, alarm, end",
    ),
    ("happened_s", "float", "s since 1970", "when it was over"),
    ("step", "int", "steps", "steps done by then"),
    (
        "seconds",
        "float",
        "s",
        "how long it took; of a driver's failure since it last heard of a step, of a restart until then",
    ),
    ("blocked_s", "float", "s", "how long the training stood still for it"),
    ("num_bytes", "int", "bytes", "of this rank's share"),
    ("place", "text", "", "of a save: disk or store"),
    ("generation", "text", "", "the checkpoint that it is about"),
    ("text", "text", "", "in words"),
)

_PHASES = _columns(
    (
        "phase",
        "text",
        "",
        "what the time went into: productive, data wait, eval, save, restore, start, stall, idle",
    ),
    ("started_s", "float", "s since 1970", "when the span of time began"),
    ("ended_s", "float", "s since 1970", "when it ended"),
    ("seconds", "float", "s", "of the phase within the span; a span's phases add up to its length"),
)

_METRICS = _columns(
    ("strategy", "text", "", "how the model is spread over the devices"),
    ("world_size", "int", "devices", "torch devices that worked together"),
    ("rank", "int", "", "0: a row speaks for the whole job"),
    ("seq_len", "int", "tokens", "tokens per sequence"),
    ("tier", "text", "", "resource tier of the sweep: A standard cards, B high memory"),
    ("steps", "int", "steps", "optimizer steps measured"),
    ("per_device_batch", "int", "sequences", "sequences per device and micro-batch"),
    ("grad_accum", "int", "", "micro-batches per optimizer step"),
    ("tokens_per_sec", "float", "tokens/s", "all tokens of the window over the window's time"),
    ("mean_step_time_sec", "float", "s", "the window's time over its optimizer steps"),
    ("mean_loss", "float", "nats/token", "over the window"),
    ("peak_vram_gb", "float", "GB (1e9)", "most memory allocated on any device; null on a CPU"),
    ("h2d_gbps_per_gpu", "float", "GB/s", "bytes copied to a device over the time of the copies"),
    ("scaling_efficiency_pct", "float", "%", "throughput per device, of that at the smallest world size"),
    ("sweep", "text", "", "the sweep that asked for it"),
    ("cell_id", "text", "", "what repeats are repeats of"),
    ("run_id", "text", "", "one repeat of one cell"),
    ("repeat", "int", "", "which repeat"),
    ("order", "int", "", "its place in the order of the sweep"),
    ("attempt", "int", "", "which attempt at the run this is"),
    ("group", "text", "", "the worker group it ran on"),
    ("vendor", "text", "", "of the group's devices"),
    ("simulated", "bool", "", "whether CPUs stood in for the group's devices"),
    ("model", "text", "", "the preset's name"),
    ("precision", "text", "", "the dtype of the computation"),
    (
        "activation_checkpointing",
        "text",
        "",
        "what the backward pass computes again instead of keeping it: none, selective, full; null is none",
    ),
    (
        "cross_entropy",
        "text",
        "",
        "whether all logits were held at once, or chunks: whole, chunked; null is whole",
    ),
    ("compile", "text", "", "whether TorchInductor compiled the blocks: none, block; null is none"),
    ("attention", "text", "", "the kernel that was asked for: auto, flash, efficient, cudnn, math"),
    ("status", "text", "", "ok, or how it failed"),
    ("error_reason", "text", "", "why it has no numbers"),
    ("error_phase", "text", "", "what it was doing when it failed"),
    ("error_log_tail", "texts", "", "the last lines of its log"),
    ("started_at", "text", "ISO 8601", "when it began"),
    ("finished_at", "text", "ISO 8601", "when it ended"),
    ("timing_unit", "text", "", "what a step is: optimizer_step, or unknown where it can't be trusted"),
    ("source", "text", "", "the file it was read from"),
    ("imported", "bool", "", "whether somebody else's software measured it"),
    ("warnings", "texts", "", "what to know before believing it"),
    ("scaling_baseline_world_size", "int", "devices", "what its scaling efficiency is compared with"),
    ("tokens_per_sec_per_device", "float", "tokens/s", "throughput over the number of devices"),
    ("window_sec", "float", "s", "the measured time: the slowest rank's total"),
    ("step_time_p50_sec", "float", "s", "median of the per-step maxima over ranks"),
    ("step_time_p90_sec", "float", "s", "90th percentile of them"),
    ("step_time_p95_sec", "float", "s", "95th percentile of them"),
    ("step_time_p99_sec", "float", "s", "99th percentile of them"),
    ("step_time_min_sec", "float", "s", "the shortest of them"),
    ("step_time_max_sec", "float", "s", "the longest of them"),
    ("step_time_cv", "float", "", "their standard deviation over their mean"),
    ("micro_step_time_sec", "float", "s", "step time over the micro-batches of a step"),
    ("setup_sec", "float", "s", "from the start to the first step"),
    ("warmup_sec", "float", "s", "the steps before the window"),
    ("warmup_steps", "int", "steps", "how many they were"),
    ("warmup_rule", "text", "", "when the warm-up was over"),
    ("attention_kernel", "text", "", "the kernel that ran: flash, efficient, cudnn, math"),
    ("recompilations", "int", "", "graphs compiled inside the window, which is then no measure of steps"),
    ("mfu", "float", "", "achieved FLOP/s over the datasheet's peak, 0 to 1"),
    ("hfu", "float", "", "the same with what was computed again; null for a row without such a column"),
    ("flops_formula", "text", "", "the name of the formula behind it"),
    ("flops_per_token", "float", "FLOP", "by that formula"),
    ("recomputed_flops_per_token", "float", "FLOP", "computed again by activation checkpointing"),
    ("peak_flops", "float", "FLOP/s", "of one device in this precision, by its datasheet"),
    ("peak_flops_source", "text", "", "where that figure comes from"),
    ("measured_peak_flops", "float", "FLOP/s", "the rate of a plain matrix product on that device"),
    ("parameters", "int", "", "of the model"),
    ("tokens_per_step", "int", "tokens", "of all devices in one optimizer step"),
    ("seed", "int", "", "of weights and samples"),
    ("sync", "text", "", "whether devices were synchronised per window or per step"),
    ("isolation", "text", "", "what repeats share: nothing, or the processes"),
    (
        "spread",
        "bool",
        "",
        "whether its workers went to as many nodes as there were, not to as few as hold them",
    ),
    ("peak_allocated_bytes_max", "int", "bytes", "most memory allocated, on the fullest device"),
    ("peak_allocated_bytes_min", "int", "bytes", "the same on the emptiest one"),
    ("peak_reserved_bytes_max", "int", "bytes", "most that torch's allocator held, on the fullest device"),
    ("device_used_bytes_max", "int", "bytes", "most in use on a device by all, as its driver tells"),
    ("allocator_retries", "int", "", "how often the allocator had to give memory back first"),
    ("host_peak_growth_bytes_max", "int", "bytes", "by how much a process grew in host memory"),
    ("predicted_bytes", "int", "bytes", "what the plan expected on a device"),
    ("loss_first", "float", "nats/token", "of the window's first step"),
    ("loss_last", "float", "nats/token", "of its last step"),
    ("loss_median_last_tenth", "float", "nats/token", "median of its last tenth"),
    ("loss_reference_step", "int", "steps", "a step that all runs of the sweep have"),
    ("loss_reference", "float", "nats/token", "the loss at that step"),
    ("rank_total_sec_max", "float", "s", "the slowest rank's time for the window"),
    ("rank_total_sec_min", "float", "s", "the fastest rank's"),
    ("energy_joules_per_token", "float", "J/token", "by the devices' energy counters over the window"),
    (
        "energy_joules",
        "float",
        "J",
        "of all devices, by their counters; null unless each agrees with its power within 10 %",
    ),
    ("energy_integrated_joules", "float", "J", "of all devices: their power, integrated over the window"),
    ("power_watts_mean", "float", "W", "drawn by a device, in the mean"),
    ("power_cap_watts", "float", "W", "what a device was allowed to draw, the tightest of them"),
    ("power_cap_default_watts", "float", "W", "what it is allowed to draw where nobody changed that"),
    ("clock_mhz_min", "float", "MHz", "lowest compute clock seen on any device"),
    ("clock_mhz_median", "float", "MHz", "median over the devices' medians of the compute clock"),
    ("memory_clock_mhz_median", "float", "MHz", "the same of the memory's clock"),
    ("temperature_c_max", "float", "°C", "the hottest seen on any device"),
    (
        "throttled_pct",
        "float",
        "%",
        "of the looks at a device in which its clock was held back, on the worst device",
    ),
    ("throttled", "pairs", "%", "the same for each reason: power cap, heat, hardware ..."),
    ("ecc_errors", "int", "", "memory errors of all devices during the window, corrected or not"),
    ("platform", "text", "", "cuda, rocm or cpu"),
    ("device_name", "text", "", "the market name of rank 0's device"),
    ("device_count", "int", "devices", "how many different ones took part"),
    ("device_memory_bytes", "int", "bytes", "of one device"),
    ("driver", "text", "", "the driver's version"),
    ("nodes", "texts", "", "where the ranks ran, of a failed run those that failed"),
    ("python", "text", "", "version"),
    ("torch", "text", "", "version and build"),
    ("collectives", "text", "", "library of the collectives, and its version"),
    ("packages", "pairs", "", "versions of what else the numbers depend on"),
    ("variables", "pairs", "", "environment variables that change speed"),
    ("optimizer", "pairs", "", "its settings"),
    ("commit", "text", "", "of our code, where it is known"),
    ("source_digest", "text", "", "of our code"),
    ("metrics", "pairs", "", "the user's own, see the sweep's spec"),
    ("raw_step_times", "floats", "s", "each measured step, the slowest rank's time"),
)

PARTS: Mapping[str, tuple[Column, ...]] = {
    "steps": (*_KEY_COLUMNS, *_STEPS),
    "samples": (*_KEY_COLUMNS, *_SAMPLES, *_SAMPLES_ADDED),
    "incidents": (*_KEY_COLUMNS, *_INCIDENTS),
    "phases": (*_KEY_COLUMNS, *_PHASES),
}
ADDED: Mapping[str, tuple[Column, ...]] = {"samples": _SAMPLES_ADDED}
SUPERSEDED = Column(
    name="superseded",
    kind="bool",
    unit="",
    meaning="whether a later attempt went on from before this step, so that it doesn't count",
)
TABLES: Mapping[str, tuple[Column, ...]] = {
    **PARTS,
    "steps": (*PARTS["steps"], SUPERSEDED),
    "metrics": _METRICS,
}
