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
    ("run", "text", "", "name of the long run"),
    ("term", "int", "", "number of the attempt, which is the number of its lease in the run's log"),
    ("rank", "int", "", "rank that recorded the row; -1 is the driver"),
)

_STEPS = _columns(
    ("step", "int", "steps", "number of optimizer steps done, with this one"),
    ("position", "int", "samples", "samples of the run's stream that all ranks have consumed so far"),
    ("epoch", "int", "", "training epoch in which the step ended, counted from 1"),
    ("ended_s", "float", "s since 1970", "time at which the step ended"),
    ("step_s", "float", "s", "host's time for the step, without waiting for data, saving and evaluating"),
    ("data_wait_s", "float", "s", "host's time for preparing samples; the device may work meanwhile"),
    ("tokens", "int", "tokens", "tokens of this rank in the step; add up those of all ranks"),
    (
        "loss",
        "float",
        "nats/token",
        "mean loss over all ranks; other ranks than 0 record their own; null if not known",
    ),
    ("grad_norm", "float", "", "norm of the gradients of all ranks before clipping; only rank 0 records it"),
    ("learning_rate", "float", "", "learning rate of the update; only rank 0 records it"),
    ("memory_bytes", "int", "bytes", "memory allocated on the device, measured at most some seconds before"),
    ("val_loss", "float", "nats/token", "mean loss over held-out samples and all ranks, after an evaluation"),
)

# This column was added later; steps recorded before that have null in it.
_STEPS_ADDED = _columns(
    (
        "source_losses",
        "text",
        "nats/token",
        "JSON: mean loss over all ranks of each source of a mixture that the step has samples of; only rank "
        "0 records it",
    ),
)

_SAMPLES = _columns(
    ("device", "text", "", "name of the device, with its number on the node"),
    (
        "taken_s",
        "float",
        "s since 1970",
        "time of recording; the device was read at most some seconds before",
    ),
    ("utilization_pct", "float", "%", "share of the time since the last sample in which the device was busy"),
    ("power_watts", "float", "W", "power that the device draws"),
    ("clock_mhz", "float", "MHz", "frequency of the compute clock"),
    ("temperature_c", "float", "°C", "temperature of the chip"),
    ("memory_bytes", "int", "bytes", "memory allocated by this rank"),
)

# These columns were added later; samples recorded before that have null in them.
_SAMPLES_ADDED = _columns(
    ("energy_joules", "float", "J", "value of the device's energy counter, which does not start at 0"),
    ("power_cap_watts", "float", "W", "power that the device may draw"),
    ("memory_clock_mhz", "float", "MHz", "frequency of the memory clock"),
    ("memory_used_bytes", "int", "bytes", "memory in use by all processes, as the driver reports it"),
    ("throttle_reasons", "text", "", "reasons for which the clock was slowed down; empty if it was not"),
    ("ecc_corrected", "int", "", "number of corrected memory errors since the device's driver was loaded"),
    ("ecc_uncorrected", "int", "", "number of other memory errors since the device's driver was loaded"),
)

_INCIDENTS = _columns(
    (
        "kind",
        "text",
        "",
        "start, restore, replay, save, failed or skipped save, failure, interruption, warning, "
        "dropped records, stop, restart, give up, alarm, end",
    ),
    ("happened_s", "float", "s since 1970", "time at which the event ended"),
    ("step", "int", "steps", "number of steps done by then"),
    (
        "seconds",
        "float",
        "s",
        "duration of the event. A driver's failure begins when the driver last heard of a step. "
        "A restart ends when it next hears of one",
    ),
    ("blocked_s", "float", "s", "how long the event stopped the training"),
    ("num_bytes", "int", "bytes", "size of this rank's share"),
    ("place", "text", "", "where a save was written: disk or store"),
    ("generation", "text", "", "checkpoint that the event belongs to"),
    ("text", "text", "", "description in words"),
)

_PHASES = _columns(
    (
        "phase",
        "text",
        "",
        "what the time was spent on: productive, data wait, eval, check, save, last save, restore, start, "
        "stall, idle",
    ),
    ("started_s", "float", "s since 1970", "time at which the span began"),
    ("ended_s", "float", "s since 1970", "time at which the span ended"),
    (
        "seconds",
        "float",
        "s",
        "time spent on the phase within the span; the phases of a span add up to its length",
    ),
)

_METRICS = _columns(
    ("strategy", "text", "", "how the training state is divided among the devices"),
    ("world_size", "int", "devices", "number of torch devices that trained together"),
    ("rank", "int", "", "always 0: a row describes the whole job"),
    ("seq_len", "int", "tokens", "tokens per sequence"),
    ("tier", "text", "", "resource tier of the sweep: A for standard cards, B for cards with much memory"),
    ("steps", "int", "steps", "number of measured optimizer steps"),
    ("per_device_batch", "int", "sequences", "sequences per device and micro-batch"),
    ("grad_accum", "int", "", "micro-batches per optimizer step"),
    ("tokens_per_sec", "float", "tokens/s", "tokens of the window, divided by the window's time"),
    ("mean_step_time_sec", "float", "s", "time of the window, divided by its number of optimizer steps"),
    ("mean_loss", "float", "nats/token", "mean loss over the window"),
    ("peak_vram_gb", "float", "GB (1e9)", "largest amount of memory allocated on any device; null on a CPU"),
    ("h2d_gbps_per_gpu", "float", "GB/s", "bytes copied to the device, divided by the time of the copies"),
    ("scaling_efficiency_pct", "float", "%", "throughput per device, over that at the smallest world size"),
    ("sweep", "text", "", "name of the sweep"),
    ("cell_id", "text", "", "identity of the cell, which its repeats share"),
    ("run_id", "text", "", "identity of the run, which is one repeat of one cell"),
    ("repeat", "int", "", "number of the repeat"),
    ("session", "int", "", "number of the session that measured it; sweep --again begins another"),
    ("order", "int", "", "position of the run in the order of the sweep"),
    ("attempt", "int", "", "number of the attempt at this run"),
    ("group", "text", "", "worker group that the run used"),
    ("vendor", "text", "", "vendor of the group's devices"),
    ("simulated", "bool", "", "whether CPUs took the place of the group's devices, or of their fp8"),
    ("model", "text", "", "name of the preset; or of the folder, with a digest of the shape"),
    ("precision", "text", "", "dtype of the computation"),
    (
        "activation_checkpointing",
        "text",
        "",
        "what the backward pass computes again instead of keeping it: none, selective, full; null means none",
    ),
    (
        "cross_entropy",
        "text",
        "",
        "whether all logits are held at once, or those of some tokens: whole, chunked; null means whole",
    ),
    ("compile", "text", "", "whether TorchInductor compiled the blocks: none, block; null means none"),
    (
        "attention",
        "text",
        "",
        "attention kernel that was requested: auto, flash, efficient, cudnn, math, flex",
    ),
    ("fp8", "text", "", "scales of fp8 in the blocks: none, tensorwise, rowwise; null means none"),
    ("offload", "text", "", "state that is kept in host memory: none, optimizer; null means none"),
    (
        "shard_within",
        "int",
        "devices",
        "number of neighbouring devices that hold one copy of the state; null means all",
    ),
    ("deterministic", "bool", "", "whether only kernels and collectives that repeat to the bit were allowed"),
    ("micro_batch_asked", "text", "", "max if the largest micro-batch that fits was asked for"),
    ("micro_batch_trials", "int", "", "number of micro-batches tried; 0 if an earlier repeat had found it"),
    ("micro_batch_failed", "int", "sequences", "smallest micro-batch that ran out of memory"),
    (
        "rung",
        "int",
        "",
        "number of the short round of --best; 0 for a search that goes on; null for a measurement",
    ),
    ("status", "text", "", "ok, or the kind of failure"),
    ("error_reason", "text", "", "why the run has no numbers"),
    ("error_phase", "text", "", "what the run was doing when it failed"),
    ("error_log_tail", "texts", "", "last lines of the run's log"),
    ("started_at", "text", "ISO 8601", "time at which the run began"),
    ("finished_at", "text", "ISO 8601", "time at which the run ended"),
    ("timing_unit", "text", "", "what a step is: optimizer_step, or unknown if the source is unclear"),
    ("source", "text", "", "file from which the row was read"),
    ("imported", "bool", "", "whether other software measured the run"),
    ("warnings", "texts", "", "reasons to doubt the row"),
    ("scaling_baseline_world_size", "int", "devices", "world size that the scaling efficiency compares with"),
    ("tokens_per_sec_per_device", "float", "tokens/s", "throughput, divided by the number of devices"),
    ("window_sec", "float", "s", "measured time: the total of the slowest rank"),
    ("step_time_p50_sec", "float", "s", "median step time, where a step is as long as on its slowest rank"),
    ("step_time_p90_sec", "float", "s", "90th percentile of these step times"),
    ("step_time_p95_sec", "float", "s", "95th percentile of these step times"),
    ("step_time_p99_sec", "float", "s", "99th percentile of these step times"),
    ("step_time_min_sec", "float", "s", "shortest of these step times"),
    ("step_time_max_sec", "float", "s", "longest of these step times"),
    ("step_time_cv", "float", "", "standard deviation of these step times, divided by their mean"),
    ("micro_step_time_sec", "float", "s", "mean step time, divided by the number of micro-batches per step"),
    ("setup_sec", "float", "s", "time from the start to the first step"),
    ("warmup_sec", "float", "s", "time of the steps before the window"),
    ("warmup_steps", "int", "steps", "number of steps before the window"),
    ("warmup_rule", "text", "", "rule that ended the warm-up"),
    ("attention_kernel", "text", "", "attention kernel that ran: flash, efficient, cudnn, math, flex"),
    ("recompilations", "int", "", "graphs compiled inside the window, whose time the steps include"),
    ("mfu", "float", "", "model FLOP/s, divided by the peak in the device's datasheet; from 0 to 1"),
    ("hfu", "float", "", "as mfu, and with FLOPs that were computed again; null in old rows"),
    ("mfu_of_bf16_peak", "float", "", "as mfu, but by the bf16 peak, which fp8 may exceed; null without fp8"),
    ("flops_formula", "text", "", "name of the formula for FLOPs per token"),
    ("flops_per_token", "float", "FLOP", "FLOPs per token by that formula"),
    ("recomputed_flops_per_token", "float", "FLOP", "FLOPs that activation checkpointing computes again"),
    ("peak_flops", "float", "FLOP/s", "peak of one device in the products' dtype, by its datasheet"),
    ("peak_flops_source", "text", "", "source of that peak"),
    ("measured_peak_flops", "float", "FLOP/s", "rate of a plain matrix product, measured on that device"),
    ("parameters", "int", "", "number of parameters of the model"),
    ("tokens_per_step", "int", "tokens", "tokens of all devices in one optimizer step"),
    ("seed", "int", "", "seed of weights and samples"),
    ("sync", "text", "", "when devices were synchronised: once per window, or after each step"),
    ("isolation", "text", "", "what repeats share: nothing, or the processes"),
    ("spread", "bool", "", "whether workers were placed on as many nodes as possible, or on few"),
    ("peak_allocated_bytes_max", "int", "bytes", "peak of allocated memory, highest of all devices"),
    ("peak_allocated_bytes_min", "int", "bytes", "peak of allocated memory, lowest of all devices"),
    (
        "peak_reserved_bytes_max",
        "int",
        "bytes",
        "peak of memory held by torch's allocator, highest of all devices",
    ),
    ("device_used_bytes_max", "int", "bytes", "memory in use by all processes, on the device with the most"),
    ("allocator_retries", "int", "", "how often the allocator had to give memory back and try again"),
    ("host_peak_growth_bytes_max", "int", "bytes", "growth of host memory, of the process that grew most"),
    ("predicted_bytes", "int", "bytes", "memory per device that the plan predicted"),
    ("loss_first", "float", "nats/token", "loss of the window's first step"),
    ("loss_last", "float", "nats/token", "loss of the window's last step"),
    ("loss_median_last_tenth", "float", "nats/token", "median loss of the window's last tenth"),
    ("loss_reference_step", "int", "steps", "number of a step that every run of the sweep has"),
    ("loss_reference", "float", "nats/token", "loss at that step"),
    ("rank_total_sec_max", "float", "s", "the window's time on the slowest rank"),
    ("rank_total_sec_min", "float", "s", "the window's time on the fastest rank"),
    ("energy_joules_per_token", "float", "J/token", "energy per token, by the devices' energy counters"),
    (
        "energy_joules",
        "float",
        "J",
        "energy of all devices by their counters; null unless each agrees with its power within 10 %",
    ),
    ("energy_integrated_joules", "float", "J", "the same by the devices' power, integrated over the window"),
    ("power_watts_mean", "float", "W", "mean power of a device"),
    ("power_cap_watts", "float", "W", "power that a device was allowed to draw; the lowest of all devices"),
    ("power_cap_default_watts", "float", "W", "power that a device is allowed to draw by default"),
    ("clock_mhz_min", "float", "MHz", "lowest compute clock of any device"),
    ("clock_mhz_median", "float", "MHz", "median of the devices' median compute clocks"),
    ("memory_clock_mhz_median", "float", "MHz", "median of the devices' median memory clocks"),
    ("temperature_c_max", "float", "°C", "highest temperature of any device"),
    ("throttled_pct", "float", "%", "share of samples in which the clock was slowed down, worst device"),
    ("throttled", "pairs", "%", "the same share for each reason: power cap, heat, hardware, and others"),
    ("ecc_errors", "int", "", "number of memory errors of all devices during the window, corrected or not"),
    ("profile_problem", "text", "", "why there is no profile, although one was requested"),
    ("profile_basis", "text", "", "what the profile counts as work: device (kernels), cpu (operators)"),
    ("profile_steps", "int", "steps", "number of steps that were profiled, after the window"),
    ("profile_step_sec", "float", "s", "mean time of a profiled step on the slowest rank"),
    (
        "profile_communication_share",
        "float",
        "",
        "share of the profiled time in which a collective ran, from 0 to 1; mean over ranks",
    ),
    (
        "profile_exposed_communication_share",
        "float",
        "",
        "share in which a collective ran and nothing was computed; mean over ranks",
    ),
    ("profile_exposed_communication_share_min", "float", "", "that share on the rank with the least"),
    ("profile_exposed_communication_share_max", "float", "", "that share on the rank with the most"),
    ("profile_data_wait_share", "float", "", "share in which the host got batches; mean over ranks"),
    (
        "profile_device_idle_share",
        "float",
        "",
        "share in which nothing ran on the device; mean over ranks; null on a CPU",
    ),
    ("profile_operation_names", "texts", "", "rank 0's operations that took most of the profiled time"),
    ("profile_operation_shares", "floats", "", "share of the profiled time that each of them took"),
    ("profile_operation_calls", "floats", "", "calls of each of them per step"),
    ("profile_operation_sec", "floats", "s", "time of each of them per step"),
    ("profile_trace", "text", "", "file with rank 0's trace, beside the result"),
    ("profile_trace_bytes", "int", "bytes", "size of that file"),
    ("profile_trace_problem", "text", "", "why there is a profile without a trace"),
    ("platform", "text", "", "cuda, rocm or cpu"),
    ("device_name", "text", "", "market name of rank 0's device"),
    ("device_count", "int", "devices", "number of different devices that took part"),
    ("device_memory_bytes", "int", "bytes", "memory of one device"),
    ("driver", "text", "", "version of the device's driver"),
    ("nodes", "texts", "", "nodes of the ranks; of a failed run, those of the ranks that failed"),
    ("python", "text", "", "version of Python"),
    ("torch", "text", "", "version and build of torch"),
    ("collectives", "text", "", "library of the collectives, with its version"),
    ("packages", "pairs", "", "versions of other packages that can change the numbers"),
    ("variables", "pairs", "", "environment variables that can change the speed"),
    (
        "fingerprint",
        "pairs",
        "",
        "libraries, firmware, links and settings of the machines that can change the speed",
    ),
    ("optimizer", "pairs", "", "settings of the optimizer"),
    ("commit", "text", "", "commit of Longhaul's code, if it is known"),
    ("source_digest", "text", "", "digest of Longhaul's code"),
    ("metrics", "pairs", "", "further metrics, those of jobs/sweeps/rows/metrics.py"),
    ("raw_step_times", "floats", "s", "time of each measured step, on its slowest rank"),
)

PARTS: Mapping[str, tuple[Column, ...]] = {
    "steps": (*_KEY_COLUMNS, *_STEPS, *_STEPS_ADDED),
    "samples": (*_KEY_COLUMNS, *_SAMPLES, *_SAMPLES_ADDED),
    "incidents": (*_KEY_COLUMNS, *_INCIDENTS),
    "phases": (*_KEY_COLUMNS, *_PHASES),
}
ADDED: Mapping[str, tuple[Column, ...]] = {"steps": _STEPS_ADDED, "samples": _SAMPLES_ADDED}
SUPERSEDED = Column(
    name="superseded",
    kind="bool",
    unit="",
    meaning="whether a later attempt continued from an earlier step, so that this row does not count",
)
TABLES: Mapping[str, tuple[Column, ...]] = {
    **PARTS,
    "steps": (*PARTS["steps"], SUPERSEDED),
    "metrics": _METRICS,
}
