"""Turns a run and its outcome into the row that is stored. Pure: the times are arguments."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING, assert_never

from cluster.accelerators import Accelerator, accelerator
from cluster.inventory import NODE_NAME_CHARS
from jobs.sweeps.grid import MAX, Run
from jobs.sweeps.plan import Plan
from jobs.sweeps.rows.energy import power_of
from jobs.sweeps.rows.metrics import METRICS, Metric
from jobs.sweeps.rows.source_version import commit, source_digest
from jobs.sweeps.search.answers import Answer
from jobs.training.task.job import Recipe, Window, split_copies
from jobs.training.task.measurement import Failure, Measurement, NoProfile, Profile, RankSummary
from reporting.results.formulas import (
    FLOPS_FORMULA,
    coefficient_of_variation,
    model_flops_utilization,
    percentile,
    tokens_per_second,
)
from reporting.results.records import (
    BatchSearchRecord,
    ConfigRecord,
    DeviceRecord,
    EnvironmentRecord,
    ErrorRecord,
    LossRecord,
    MemoryRecord,
    PerformanceRecord,
    ProfileRecord,
    RanksRecord,
    RunRecord,
)
from reporting.results.settings import settings_of

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec

# Together with the limit of a fingerprint these keep a row of 32 ranks below 13 KB. Each further rank adds
# about 85 bytes.
_MAX_LOG_LINES = 20
_MAX_LOG_LINE_BYTES = 300
_MAX_REASON_BYTES = 1000
_MAX_NAME_BYTES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttempt:
    """One start of a run. ``number`` counts the starts from 1; times are ISO 8601 in UTC."""

    number: int
    started_at: str
    finished_at: str


def record_of(
    spec: "SweepSpec",
    run: Run,
    plan: Plan,
    outcome: Measurement | Failure,
    attempt: RunAttempt,
    answer: Answer | None = None,
) -> RunRecord:
    """The row of a run. ``answer`` is what an earlier run found, if this one relied on it."""
    recipe = _recipe(plan, outcome, answer)
    common = RunRecord(
        sweep=spec.name,
        cell_id=run.cell.cell_id,
        run_id=run.run_id,
        repeat=run.repeat,
        session=run.session,
        order=run.order,
        attempt=attempt.number,
        group=run.cell.group,
        vendor=plan.group.vendor if plan.group else None,
        simulated=plan.is_simulated,
        model=recipe.model.name,
        strategy=recipe.strategy,
        world_size=recipe.world_size,
        seq_len=recipe.seq_len,
        tier=spec.tier,
        precision=recipe.precision,
        **settings_of(recipe),
        per_device_batch=recipe.micro_batch,
        grad_accum=recipe.grad_accum,
        rung=run.cell.rung,
        batch_search=_batch_search(run, outcome, answer),
        status="ok",
        error=None,
        started_at=attempt.started_at,
        finished_at=attempt.finished_at,
        flops_formula=FLOPS_FORMULA,
        flops_per_token=plan.flops_per_token,
        recomputed_flops_per_token=plan.recomputed_flops_per_token,
        training_config=_config(spec, recipe, run.cell.window),
        metrics={},
    )
    if isinstance(outcome, Failure):
        return _failed(common, outcome)
    return _measured(common, recipe, plan, outcome)


def _recipe(plan: Plan, outcome: Measurement | Failure, answer: Answer | None) -> Recipe:
    """What was measured, or tried last, or what would have been tried first."""
    if answer is not None and (size := answer.micro_batch or answer.record.smallest_failed):
        return plan.recipe.in_micro_batches_of(size)
    search = outcome.search
    if search is None or not search.num_trials:
        return plan.recipe
    return plan.recipe.in_micro_batches_of(search.largest or min(search.failed))


def _batch_search(
    run: Run, outcome: Measurement | Failure, answer: Answer | None
) -> BatchSearchRecord | None:
    if not run.cell.question:
        return None
    if answer is not None:
        return replace(answer.record, num_trials=0, found_by=answer.found_by)
    search = outcome.search
    return BatchSearchRecord(
        asked=MAX,
        question=run.cell.question,
        num_trials=search.num_trials if search else 0,
        smallest_failed=search.smallest_failed if search else None,
        fitted=search.fitted if search else (),
        failed=search.failed if search else (),
        is_over=search is not None and (isinstance(outcome, Measurement) or not search.goes_on),
    )


def _config(spec: "SweepSpec", recipe: Recipe, window: Window) -> ConfigRecord:
    return ConfigRecord(
        parameters=recipe.model.num_parameters,
        tokens_per_step=recipe.tokens_per_step,
        sync=window.sync,
        max_s=window.max_s,
        seed=recipe.seed,
        isolation=spec.isolation,
        spread=spec.spread,
        optimizer=asdict(recipe.optimizer),
    )


def _failed(common: RunRecord, failure: Failure) -> RunRecord:
    lines = tuple(_clipped(line, _MAX_LOG_LINE_BYTES) for line in failure.log_tail[-_MAX_LOG_LINES:])
    error = ErrorRecord(
        reason=_clipped(failure.reason, _MAX_REASON_BYTES),
        phase=failure.phase,
        wanted_bytes=failure.wanted_bytes,
        ranks=failure.ranks,
        log_tail=lines,
        nodes=tuple(node[:NODE_NAME_CHARS] for node in failure.nodes),
    )
    return replace(common, status=failure.status, error=error)


def _clipped(text: str, num_bytes: int) -> str:
    """A beginning of ``text`` that takes at most ``num_bytes`` as JSON.

    JSON writes six bytes for a colour code's escape character or a progress bar's block.
    """
    text = text[:num_bytes]
    while len(json.dumps(text)) > num_bytes + len('""'):
        text = text[: -1 - len(text) // 10]
    return text


def _measured(common: RunRecord, recipe: Recipe, plan: Plan, measured: Measurement) -> RunRecord:
    num_steps = len(measured.step_times_s)
    throughput = tokens_per_second(recipe.tokens_per_step, num_steps, measured.window_s)
    per_device = throughput / recipe.world_size
    chip = _whole_chip(measured)
    peak = chip.peak_flops(recipe.product_dtype) if chip else None
    bf16_peak = chip.peak_flops("bf16") if chip and recipe.fp8 != "none" else None
    memory = _memory(plan.predicted_bytes_of(recipe), measured.ranks)
    return replace(
        common,
        steps=num_steps,
        warmup_steps=measured.warmup_steps,
        warmup_rule=measured.warmup_rule,
        recompilations=measured.recompilations,
        attention_kernel=measured.attention_kernel,
        tokens_per_sec=throughput,
        mean_step_time_sec=measured.window_s / num_steps,
        mean_loss=fmean(measured.losses),
        peak_vram_gb=_gigabytes(memory.peak_allocated_bytes_max),
        h2d_gbps_per_gpu=_h2d_gbps(measured),
        mfu=model_flops_utilization(per_device, plan.flops_per_token, peak),
        hfu=model_flops_utilization(per_device, plan.flops_per_token + plan.recomputed_flops_per_token, peak),
        mfu_of_bf16_peak=model_flops_utilization(per_device, plan.flops_per_token, bf16_peak),
        peak_flops=peak,
        peak_flops_source=chip.source if chip and peak else None,
        device_memory_bytes=measured.ranks[0].device_memory_bytes,
        platform=measured.environment.platform,
        gpu_info=_devices(measured),
        performance_metrics=_performance(recipe.grad_accum, measured, per_device),
        memory_metrics=memory,
        loss_metrics=_losses(measured),
        power_metrics=power_of(measured.ranks, recipe.tokens_per_step * num_steps),
        profile=_profile(measured.profile),
        warnings=_warnings(recipe, measured),
        metrics={name: _metric(metric, recipe, measured) for name, metric in METRICS.items()},
        per_rank=_ranks(measured.ranks),
        raw_step_times=tuple(round(seconds, 6) for seconds in measured.step_times_s),
        environment=_environment(measured),
    )


def _warnings(recipe: Recipe, measured: Measurement) -> tuple[str, ...]:
    split = split_copies(recipe.shard_within, [rank.node for rank in measured.ranks])
    return (split,) if split else ()


def _metric(metric: Metric, recipe: Recipe, measured: Measurement) -> float | None:
    """The metric's value, or None if the metric raises or its value is not finite.

    A bug in a user's metric must not cost the run its row.
    """
    try:
        value = metric(recipe, measured)
    except Exception:
        return None
    return value if value is not None and isfinite(value) else None


def _whole_chip(measured: Measurement) -> Accelerator | None:
    """The chip of that name, or None if the device is only a partition of it.

    A partition has the name of the whole chip, so its memory tells them apart.
    """
    chip = accelerator(measured.environment.device)
    memory_bytes = measured.ranks[0].device_memory_bytes
    if chip is None or (memory_bytes is not None and memory_bytes < chip.memory_bytes / 2):
        return None
    return chip


def _h2d_gbps(measured: Measurement) -> float | None:
    if measured.h2d_bytes_per_step is None or not measured.h2d_s_per_step:
        return None
    return measured.h2d_bytes_per_step / measured.h2d_s_per_step / 1e9


def _devices(measured: Measurement) -> DeviceRecord:
    return DeviceRecord(
        name=measured.environment.device,
        count=len({(rank.node, rank.device_id) for rank in measured.ranks}),
        memory_bytes=measured.ranks[0].device_memory_bytes,
        driver=measured.environment.driver,
    )


def _performance(grad_accum: int, measured: Measurement, per_device: float) -> PerformanceRecord:
    times = measured.step_times_s
    return PerformanceRecord(
        window_sec=measured.window_s,
        p50_sec=percentile(times, 50),
        p90_sec=percentile(times, 90),
        p95_sec=percentile(times, 95),
        p99_sec=percentile(times, 99),
        min_sec=min(times),
        max_sec=max(times),
        cv=coefficient_of_variation(times),
        micro_step_time_sec=measured.window_s / len(times) / grad_accum,
        tokens_per_sec_per_device=per_device,
        setup_sec=measured.setup_s,
        warmup_sec=measured.warmup_s,
    )


def _memory(predicted_bytes: int, ranks: tuple[RankSummary, ...]) -> MemoryRecord:
    allocated = [rank.peak_allocated_bytes for rank in ranks if rank.peak_allocated_bytes is not None]
    reserved = [rank.peak_reserved_bytes for rank in ranks if rank.peak_reserved_bytes is not None]
    used = [rank.device_used_bytes for rank in ranks if rank.device_used_bytes is not None]
    retries = [rank.allocator_retries for rank in ranks if rank.allocator_retries is not None]
    return MemoryRecord(
        peak_allocated_bytes_max=max(allocated, default=None),
        peak_allocated_bytes_min=min(allocated, default=None),
        peak_reserved_bytes_max=max(reserved, default=None),
        device_used_bytes_max=max(used, default=None),
        allocator_retries=sum(retries) if retries else None,
        host_peak_growth_bytes_max=max(rank.host_peak_growth_bytes for rank in ranks),
        predicted_bytes=predicted_bytes,
    )


def _losses(measured: Measurement) -> LossRecord:
    losses = measured.losses
    return LossRecord(
        first=losses[0],
        last=losses[-1],
        median_last_tenth=median(losses[-max(1, len(losses) // 10) :]),
        reference_step=measured.reference_step,
        reference=measured.reference_loss,
    )


def _profile(found: Profile | NoProfile | None) -> ProfileRecord | None:
    match found:
        case None:
            return None
        case NoProfile(reason=reason):
            return ProfileRecord(problem=_clipped(reason, _MAX_REASON_BYTES))
        case Profile():
            return _profiled(found)
        case unknown:
            assert_never(unknown)


def _profiled(found: Profile) -> ProfileRecord:
    exposed = [rank.exposed_communication for rank in found.ranks]
    idle = [rank.idle for rank in found.ranks if rank.idle is not None]
    return ProfileRecord(
        basis=found.basis,
        steps=found.num_steps,
        step_sec=round(max(rank.step_s for rank in found.ranks), 9),
        communication_share=round(fmean(rank.communication for rank in found.ranks), 6),
        exposed_communication_share=round(fmean(exposed), 6),
        exposed_communication_share_min=round(min(exposed), 6),
        exposed_communication_share_max=round(max(exposed), 6),
        data_wait_share=round(fmean(rank.data_wait for rank in found.ranks), 6),
        device_idle_share=round(fmean(idle), 6) if idle else None,
        operation_names=tuple(_clipped(found.name, _MAX_NAME_BYTES) for found in found.operations),
        operation_shares=tuple(round(found.share, 6) for found in found.operations),
        operation_calls=tuple(round(found.calls_per_step, 3) for found in found.operations),
        operation_sec=tuple(round(found.seconds_per_step, 9) for found in found.operations),
        trace=None if found.trace is None else trace_name(found.trace),
        trace_bytes=None if found.trace is None else len(found.trace),
        trace_problem=found.trace_problem and _clipped(found.trace_problem, _MAX_REASON_BYTES),
    )


def trace_name(trace: bytes) -> str:
    """The name of a trace's file: of its bytes, so that no other start of the sweep replaces it."""
    return f"trace-{hashlib.sha256(trace).hexdigest()[:16]}.json.gz"


def without_trace(record: RunRecord, reason: str) -> RunRecord:
    """The record of a run whose trace could not be stored."""
    assert record.profile is not None
    reason = _clipped(reason, _MAX_REASON_BYTES)
    return replace(
        record, profile=replace(record.profile, trace=None, trace_bytes=None, trace_problem=reason)
    )


def _ranks(ranks: tuple[RankSummary, ...]) -> RanksRecord:
    return RanksRecord(
        node=tuple(rank.node[:NODE_NAME_CHARS] for rank in ranks),
        total_sec=tuple(round(rank.total_s, 6) for rank in ranks),
        p50_sec=tuple(round(rank.p50_s, 6) for rank in ranks),
        p95_sec=tuple(round(rank.p95_s, 6) for rank in ranks),
        max_sec=tuple(round(rank.max_s, 6) for rank in ranks),
        mean_loss=tuple(round(rank.mean_loss, 6) for rank in ranks),
        peak_allocated_bytes=tuple(rank.peak_allocated_bytes for rank in ranks),
        host_peak_growth_bytes=tuple(rank.host_peak_growth_bytes for rank in ranks),
    )


def _environment(measured: Measurement) -> EnvironmentRecord:
    found = measured.environment
    return EnvironmentRecord(
        python=found.python,
        torch=found.torch,
        packages=found.packages,
        collectives=found.collectives,
        variables=found.variables,
        commit=commit(),
        source_digest=source_digest(),
        fingerprint=found.fingerprint,
    )


def _gigabytes(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / 1e9
