"""Measures one run: set up, warm up, time the window, gather the results once. Knows nothing of Ray.

Every rank calls ``measure`` with the same job. Rank 0 returns the numbers, the other ranks None. A failure
raises; the process group may then be unusable, because other ranks can be stuck in a collective.
"""

import time
from dataclasses import dataclass
from math import ceil, isfinite
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import Tensor

from cluster.telemetry.readings import Telemetry
from cluster.telemetry.sampler import Sampler
from cluster.telemetry.summary import Watched, watched
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.benchmark.timing import ROLLING, HostTimer, has_settled, timer_for
from jobs.training.device import host_memory
from jobs.training.device.environment import environment_of
from jobs.training.device.identities import Expected
from jobs.training.device.rank_device import check_ranks, device_name, identity, telemetry
from jobs.training.health.failures import InvalidLoss
from jobs.training.ranks.gathering import from_rank_0, gather
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context, Phase
from jobs.training.task.job import Job, Window
from jobs.training.task.measurement import Measurement, RankSummary
from reporting.results.formulas import percentile

MAX_WARMUP_STEPS = 50
WARMUP_RULE = "rolling_median_5_within_1pct_max_50"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """A finished warm-up. ``reference_loss`` is the mean over all ranks at ``reference_step``."""

    steps: int
    median_step_s: float
    reference_step: int
    reference_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankWindow:
    """One rank's results of the window, in the form in which all ranks gather them."""

    step_times_s: list[float]
    losses: list[float]
    num_skipped_updates: int
    h2d_s: float | None
    summary: RankSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What is measured beside the steps: host memory, which began at ``resident_before``, and the device."""

    resident_before: int
    sampler: Sampler


def measure(job: Job, context: Context, source: Telemetry | None = None) -> Measurement | None:
    """Measures ``job``. ``source`` is the device's telemetry; None means the vendor's own."""
    sampler = Sampler(source or telemetry(context.device))
    sampler.start()
    try:
        return _measure(job, context, sampler)
    finally:
        sampler.close()


def _measure(job: Job, context: Context, sampler: Sampler) -> Measurement | None:
    _cool_down(job, context)
    _enter(context, "setup", 0)
    check_ranks(context, _expected(job))
    started = time.perf_counter()
    host_memory.return_large_pieces()
    beside = _Beside(resident_before=host_memory.reset_peak(), sampler=sampler)
    with host_memory.budget(job.memory_budget_bytes):
        engine = build(job.recipe, context.device)
        try:
            feed = BatchFeed(job.recipe, context.rank, context.device)
            _synchronize(context.device)
            setup_s = time.perf_counter() - started
            warmup = _warm_up(job, context, engine, feed)
            warmup_s = time.perf_counter() - started - setup_s
            window = _measure_window(job, context, engine, feed, warmup, beside)
            _enter(context, "gather", 0)
            ranks = gather(window, _RankWindow)
            _enter(context, "teardown", 0)
        finally:
            engine.close()
    losses = [fmean(of_step) for of_step in zip(*(rank.losses for rank in ranks), strict=True)]
    _check_finite(losses, "of the window")
    _check_updates(max(rank.num_skipped_updates for rank in ranks))
    if context.rank != 0:
        return None
    return Measurement(
        run_id=job.run_id,
        warmup_steps=warmup.steps,
        warmup_rule=WARMUP_RULE,
        window_s=max(rank.summary.total_s for rank in ranks),
        step_times_s=tuple(map(max, zip(*(rank.step_times_s for rank in ranks), strict=True))),
        losses=tuple(losses),
        reference_step=warmup.reference_step,
        reference_loss=warmup.reference_loss,
        ranks=tuple(rank.summary for rank in ranks),
        h2d_bytes_per_step=feed.bytes_per_step,
        h2d_s_per_step=_slowest_copies(ranks),
        setup_s=setup_s,
        warmup_s=warmup_s,
        environment=environment_of(context.device),
    )


def _expected(job: Job) -> Expected:
    return Expected(
        world_size=job.recipe.world_size,
        vendor="cpu" if job.simulated else job.vendor,
        may_mix_devices=job.may_mix_devices,
    )


def _enter(context: Context, phase: Phase, num_steps: int) -> None:
    status = context.status
    status.phase, status.step, status.num_steps = phase, 0, num_steps


def _cool_down(job: Job, context: Context) -> None:
    """Waits ``cooldown_s`` before the run. A wait after the run would delay the run's result."""
    _enter(context, "cooldown", 0)
    time.sleep(job.window.cooldown_s)


def _warm_up(job: Job, context: Context, engine: Engine, feed: BatchFeed) -> _Warmup:
    """Does steps until their times have settled. Rank 0 decides, so all ranks stop after the same step."""
    _enter(context, "warmup", job.window.warmup)
    timer = HostTimer()
    timer.mark()
    reference_step = max(1, job.window.warmup)
    losses: list[Tensor] = []
    num_steps, done = 0, False
    while not done:
        losses.append(train_step(engine, feed.of_step(num_steps)))
        _synchronize(context.device)
        timer.mark()
        num_steps += 1
        times = timer.step_times_s()
        _beat(context, num_steps, times[-1])
        done = num_steps >= job.window.warmup and from_rank_0(_warm_enough(times), bool)
    _check_finite([fmean(gather(losses[-1].item(), float))], "after the warm-up")
    return _Warmup(
        steps=num_steps,
        median_step_s=from_rank_0(median(times[-ROLLING:]), float),
        reference_step=reference_step,
        reference_loss=fmean(gather(losses[reference_step - 1].item(), float)),
    )


def _warm_enough(times: list[float]) -> bool:
    return has_settled(times) or len(times) >= MAX_WARMUP_STEPS


def _measure_window(
    job: Job, context: Context, engine: Engine, feed: BatchFeed, warmup: _Warmup, beside: _Beside
) -> _RankWindow:
    num_steps = _num_steps(job.window, warmup.median_step_s)
    beside.sampler.begin()
    step_times_s, losses = _run_window(job, context, engine, feed, warmup.steps, num_steps)
    told = watched(beside.sampler.end())
    return _RankWindow(
        step_times_s=step_times_s,
        losses=losses,
        num_skipped_updates=engine.num_skipped_updates,
        h2d_s=feed.copy_s(),
        summary=_summary(context, step_times_s, losses, beside.resident_before, told),
    )


def _num_steps(window: Window, median_step_s: float) -> int:
    """The window's number of steps, fixed before it starts: ``window.steps``, or fewer to keep ``max_s``."""
    if window.max_s is None:
        return window.steps
    return min(window.steps, max(1, ceil(window.max_s / median_step_s)))


def _run_window(
    job: Job, context: Context, engine: Engine, feed: BatchFeed, first_step: int, num_steps: int
) -> tuple[list[float], list[float]]:
    timer = timer_for(context.device)
    losses: list[Tensor] = []
    after_step = _synchronize if job.window.sync == "step" else _dont_synchronize
    _reset_device_peak(context.device)
    feed.forget_copies()
    dist.barrier()
    _synchronize(context.device)
    _enter(context, "window", num_steps)
    context.status.memory_bytes = _memory_in_use(context.device)
    previous = time.perf_counter()
    timer.mark()
    for index in range(num_steps):
        losses.append(train_step(engine, feed.of_step(first_step + index)))
        after_step(context.device)
        timer.mark()
        now = time.perf_counter()
        _beat(context, index + 1, now - previous)
        previous = now
    times = timer.step_times_s()
    return times, torch.stack(losses).float().cpu().tolist()


def _summary(
    context: Context, step_times_s: list[float], losses: list[float], resident_before: int, told: Watched
) -> RankSummary:
    peak = _device_peak(context.device)
    return RankSummary(
        rank=context.rank,
        node=context.node,
        device=device_name(context.device) or "cpu",
        device_id=identity(context).device_id,
        total_s=sum(step_times_s),
        p50_s=percentile(step_times_s, 50),
        p95_s=percentile(step_times_s, 95),
        max_s=max(step_times_s),
        mean_loss=fmean(losses),
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        allocator_retries=peak.retries,
        device_memory_bytes=peak.total,
        device_used_bytes=peak.used,
        host_peak_growth_bytes=max(0, host_memory.peak_bytes() - resident_before),
        watched=told,
    )


def _slowest_copies(ranks: list[_RankWindow]) -> float | None:
    copies_s = [rank.h2d_s / len(rank.losses) for rank in ranks if rank.h2d_s is not None]
    return max(copies_s) if copies_s else None


def _check_finite(losses: list[float], where: str) -> None:
    wrong = next((index for index, loss in enumerate(losses) if not isfinite(loss)), None)
    if wrong is not None:
        step = f"step {wrong + 1} " if len(losses) > 1 else ""
        raise InvalidLoss(
            f"the loss is {losses[wrong]} {step}{where}; expected a finite number "
            "(a lower optimizer.lr, or fp32, usually helps)"
        )


def _check_updates(num_skipped: int) -> None:
    """Raises ``InvalidLoss`` if updates were skipped: such steps are too fast, and their loss is finite."""
    if num_skipped:
        raise InvalidLoss(
            f"{num_skipped} updates were skipped because gradients were not finite "
            "(a lower optimizer.lr, or fp32, usually helps)"
        )


def _beat(context: Context, step: int, step_s: float) -> None:
    status = context.status
    status.step, status.step_s = step, step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _DevicePeak:
    allocated: int | None = None
    reserved: int | None = None
    retries: int | None = None
    total: int | None = None
    used: int | None = None


def _device_peak(device: torch.device) -> _DevicePeak:
    if device.type == "cpu":
        return _DevicePeak()
    free, total = torch.cuda.mem_get_info(device)
    return _DevicePeak(
        allocated=torch.cuda.max_memory_allocated(device),
        reserved=torch.cuda.max_memory_reserved(device),
        retries=torch.cuda.memory_stats(device)["num_alloc_retries"],
        total=total,
        used=total - free,
    )


def _memory_in_use(device: torch.device) -> int:
    return host_memory.resident_bytes() if device.type == "cpu" else torch.cuda.memory_reserved(device)


def _reset_device_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _dont_synchronize(_device: torch.device) -> None:
    return None
