"""Measures one run: set up, warm up, time the window, gather, maybe profile. Knows nothing of Ray.

Every rank calls ``measure`` with the same job. Rank 0 returns the numbers, the other ranks None. A failure
raises; the process group may then be unusable, because other ranks can be stuck in a collective.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, isfinite
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import Tensor

from cluster.fingerprint.merging import merged
from cluster.probe import door
from cluster.telemetry.readings import Telemetry
from cluster.telemetry.sampler import Sampler
from cluster.telemetry.summary import Watched, watched
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.benchmark.profiling import ProfiledSteps, profiled
from jobs.training.benchmark.timing import ROLLING, DeviceTimer, HostTimer, has_settled
from jobs.training.device import host_memory
from jobs.training.device.environment import environment_of
from jobs.training.device.fingerprint import fingerprint_of
from jobs.training.device.rank_device import check_ranks, identity, telemetry
from jobs.training.health.failures import InvalidLoss
from jobs.training.models.attention import kernel_of
from jobs.training.models.compiling import num_compiled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.ranks.gathering import from_rank_0, gather
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import BUILDING, Context, Phase
from jobs.training.task.job import Job, Window
from jobs.training.task.measurement import Measurement, NoProfile, Profile, RankSummary
from reporting.results.formulas import percentile

MAX_WARMUP_STEPS = 50
WARMUP_RULE = "median_5_within_1pct_5_times_no_trend_max_50"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """A finished warm-up. ``reference_loss`` is the mean over all ranks at ``reference_step``."""

    steps: int
    seconds: float
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
    recompilations: int | None
    summary: RankSummary
    fingerprint: dict[str, str]


def measure(
    job: Job,
    context: Context,
    source: Telemetry | None = None,
    keep: Callable[[Measurement], None] = lambda _: None,
) -> Measurement | None:
    """Measures ``job``. ``source`` is the device's telemetry; None means the vendor's own.

    ``keep`` is called on every rank before steps are profiled, with the numbers that the run has by then:
    they are good, however the profile ends.
    """
    sampler = Sampler(source or telemetry(context.device))
    sampler.start()
    try:
        return _measure(job, context, sampler, keep)
    finally:
        sampler.close()


def _measure(
    job: Job, context: Context, sampler: Sampler, keep: Callable[[Measurement], None]
) -> Measurement | None:
    enter(context, "cooldown", 0)
    time.sleep(job.window.cooldown_s)  # Before the run: a wait after it would delay the run's result.
    enter(context, "setup", 0)
    check_ranks(context, job)
    started = time.perf_counter()
    host_memory.return_large_pieces()
    resident_before = host_memory.reset_peak()
    with ExitStack() as until_the_end:
        with host_memory.budget(job.memory_budget_bytes):
            context.status.doing = BUILDING
            engine = until_the_end.enter_context(closing(build(job.recipe, context.device)))
            feed = BatchFeed(job.recipe, context.rank, context.device)
            door.synchronize(context.device)
            setup_s = time.perf_counter() - started
            run = _RankRun(
                job=job,
                context=context,
                engine=engine,
                feed=feed,
                sampler=sampler,
                resident_before=resident_before,
            )
            warmup = run.warm_up()
            window = run.measure_window(warmup)
            enter(context, "gather", 0)
            ranks = gather(window, _RankWindow)
        losses = [fmean(of_step) for of_step in zip(*(rank.losses for rank in ranks), strict=True)]
        _check_finite(losses, "of the window")
        _check_updates(max(rank.num_skipped_updates for rank in ranks))
        measured = run.measurement(warmup, ranks, losses, setup_s)
        if job.window.profile_steps:
            keep(measured)
            measured = replace(measured, profile=run.profile(warmup.steps + len(losses)))
        enter(context, "teardown", 0)
    return measured if context.rank == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankRun:
    """This rank's run of a job. Its process held ``resident_before`` bytes before the engine was built."""

    job: Job
    context: Context
    engine: Engine
    feed: BatchFeed
    sampler: Sampler
    resident_before: int

    def warm_up(self) -> _Warmup:
        """Does steps until their times have settled. Rank 0 decides when, for all ranks."""
        least_steps = self.job.window.warmup
        enter(self.context, "warmup", least_steps)
        started = time.perf_counter()
        timer = HostTimer()
        timer.mark()
        reference_step = max(1, least_steps)
        losses: list[Tensor] = []
        is_done = False
        while not is_done:
            losses.append(train_step(self.engine, self.feed.of_step(len(losses))))
            door.synchronize(self.context.device)
            timer.mark()
            times = timer.step_times_s()
            note_step(self.context, len(losses), times[-1])
            is_done = len(losses) >= least_steps and from_rank_0(_is_warm(times), bool)
        _check_finite([fmean(gather(losses[-1].item(), float))], "after the warm-up")
        return _Warmup(
            steps=len(losses),
            median_step_s=from_rank_0(median(times[-ROLLING:]), float),
            reference_step=reference_step,
            reference_loss=fmean(gather(losses[reference_step - 1].item(), float)),
            seconds=time.perf_counter() - started,
        )

    def measure_window(self, warmup: _Warmup) -> _RankWindow:
        is_compiled = self.job.recipe.compile != "none"
        num_before = num_compiled() if is_compiled else 0
        self.sampler.begin()
        step_times_s, losses = self._time_steps(warmup)
        telemetry_of_window = watched(self.sampler.end())
        return _RankWindow(
            step_times_s=step_times_s,
            losses=losses,
            num_skipped_updates=self.engine.num_skipped_updates,
            h2d_s=self.feed.copy_s(),
            recompilations=num_compiled() - num_before if is_compiled else None,
            summary=self._summary(step_times_s, losses, telemetry_of_window),
            fingerprint=fingerprint_of(self.context.device, self.sampler.settings()),
        )

    def profile(self, first_step: int) -> Profile | NoProfile:
        """Profiles steps from ``first_step`` on, outside of the memory budget: a profile needs its own."""
        steps = ProfiledSteps(
            num_steps=self.job.window.profile_steps,
            batches=lambda number: self.feed.of_step(first_step + number),
            train=partial(train_step, self.engine),
        )
        return profiled(steps, self.context)

    def _time_steps(self, warmup: _Warmup) -> tuple[list[float], list[float]]:
        """The window's step times and losses. Its number of steps is fixed before it starts."""
        device, num_steps = self.context.device, _num_steps(self.job.window, warmup.median_step_s)
        is_synchronized = self.job.window.sync == "step"
        timer = HostTimer() if device.type == "cpu" else DeviceTimer(device)
        losses: list[Tensor] = []
        door.reset_peaks(device)
        self.feed.forget_copies()
        dist.barrier()
        door.synchronize(device)
        enter(self.context, "window", num_steps)
        self.context.status.memory_bytes = _memory_in_use(device)
        previous = time.perf_counter()
        timer.mark()
        for number in range(1, num_steps + 1):
            losses.append(train_step(self.engine, self.feed.of_step(warmup.steps + number - 1)))
            if is_synchronized:
                door.synchronize(device)
            timer.mark()
            now = time.perf_counter()
            note_step(self.context, number, now - previous)
            previous = now
        times = timer.step_times_s()
        return times, torch.stack(losses).float().cpu().tolist()

    def _summary(
        self, step_times_s: list[float], losses: list[float], telemetry_of_window: Watched
    ) -> RankSummary:
        device = self.context.device
        return RankSummary(
            rank=self.context.rank,
            node=self.context.node,
            device=door.name_of(device) or "cpu",
            device_id=identity(self.context).device_id,
            total_s=sum(step_times_s),
            p50_s=percentile(step_times_s, 50),
            p95_s=percentile(step_times_s, 95),
            max_s=max(step_times_s),
            mean_loss=fmean(losses),
            **_device_memory(device),
            host_peak_growth_bytes=max(0, host_memory.peak_bytes() - self.resident_before),
            watched=telemetry_of_window,
        )

    def measurement(
        self, warmup: _Warmup, ranks: list[_RankWindow], losses: list[float], setup_s: float
    ) -> Measurement:
        """The run's numbers from all ranks' windows; ``losses`` are the means over ranks."""
        return Measurement(
            run_id=self.job.run_id,
            warmup_steps=warmup.steps,
            warmup_rule=WARMUP_RULE,
            window_s=max(rank.summary.total_s for rank in ranks),
            step_times_s=tuple(map(max, zip(*(rank.step_times_s for rank in ranks), strict=True))),
            losses=tuple(losses),
            reference_step=warmup.reference_step,
            reference_loss=warmup.reference_loss,
            ranks=tuple(rank.summary for rank in ranks),
            h2d_bytes_per_step=self.feed.bytes_per_step,
            h2d_s_per_step=_slowest_copies(ranks),
            setup_s=setup_s,
            warmup_s=warmup.seconds,
            environment=environment_of(self.context.device, merged([rank.fingerprint for rank in ranks])),
            attention_kernel=kernel_of(
                self.job.recipe, self.context.device, COMPUTE_DTYPE[self.job.recipe.precision]
            ),
            recompilations=max(
                (rank.recompilations for rank in ranks if rank.recompilations is not None), default=None
            ),
        )


def enter(context: Context, phase: Phase, num_steps: int) -> None:
    status = context.status
    status.phase, status.step, status.num_steps, status.doing = phase, 0, num_steps, ""


def note_step(context: Context, step: int, step_s: float) -> None:
    context.status.step, context.status.step_s = step, step_s


def _is_warm(times: list[float]) -> bool:
    return has_settled(times) or len(times) >= MAX_WARMUP_STEPS


def _num_steps(window: Window, median_step_s: float) -> int:
    """The window's number of steps: ``window.steps``, or fewer to keep ``max_s``."""
    if window.max_s is None:
        return window.steps
    return min(window.steps, max(1, ceil(window.max_s / median_step_s)))


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


def _device_memory(device: torch.device) -> dict[str, int | None]:
    """The window's peaks of device memory, as ``RankSummary`` names them; empty on a CPU."""
    if device.type == "cpu":
        return {}
    found = door.memory_of(device)
    return {
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "allocator_retries": found.num_retries,
        "device_memory_bytes": found.total_bytes,
        "device_used_bytes": found.total_bytes - found.free_bytes,
    }


def _memory_in_use(device: torch.device) -> int:
    return host_memory.resident_bytes() if device.type == "cpu" else door.reserved_bytes(device)
