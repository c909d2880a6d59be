"""Profiles steps with torch's profiler, after the window in which steps are timed.

Every rank does the same steps whether its profiler works or not, so no rank waits for one whose profiler
fails. Whatever the profiler raises becomes a ``NoProfile``. An exception of a step itself is raised.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from cluster.probe import door
from jobs.training.benchmark.spans import DATA_WAIT, PROFILE, STEP, NothingRecorded, Span, SpanKind, sum_up
from jobs.training.benchmark.trace_file import MOST_BYTES, chrome_trace
from jobs.training.data.synthetic import Batch
from jobs.training.ranks.gathering import gather
from jobs.training.task.context import Context
from jobs.training.task.measurement import NoProfile, Operation, Profile, ProfileBasis, RankProfile

T = TypeVar("T")

# torch's names of what it records. The rest says nothing about time on a device or a thread of ours.
_KINDS: dict[str, SpanKind] = {
    "cpu_op": "operator",
    "user_annotation": "annotation",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
# Below it torch's profiler writes two lines to the standard error of each profiled process.
_QUIET = {"KINETO_LOG_LEVEL": "6"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledSteps:
    """The steps to profile: how a rank gets the batches of each, and what it does with them."""

    num_steps: int
    batches: Callable[[int], list[Batch]]
    train: Callable[[list[Batch]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankReport:
    """What a rank tells the others. One of the two is None."""

    profile: RankProfile | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one rank's profiler saw."""

    profile: RankProfile
    operations: tuple[Operation, ...]
    spans: list[Span]


def profiled(steps: ProfiledSteps, context: Context) -> Profile | NoProfile:
    """Does the steps under the profiler. Collective. Operations are a rank's own; only rank 0 has a trace."""
    basis: ProfileBasis = "device" if context.device.type == "cuda" else "cpu"
    profiler = _tried(lambda: _started(basis))
    try:
        _do(steps, context)
    except BaseException:
        if isinstance(profiler, profile):
            _tried(profiler.stop)  # Only one profiler works at a time, and the next run may want one.
        raise
    context.status.phase, context.status.step = "trace", 0
    seen = profiler if isinstance(profiler, NoProfile) else _tried(lambda: _seen(profiler, basis, steps))
    reports = gather(_report(seen), _RankReport)
    problems = [f"rank {rank}: {one.problem}" for rank, one in enumerate(reports) if one.problem is not None]
    if problems or isinstance(seen, NoProfile):
        return NoProfile(reason=problems[0])
    trace = _trace(seen.spans) if context.rank == 0 else NoProfile(reason="only rank 0 keeps a trace")
    return Profile(
        basis=basis,
        num_steps=steps.num_steps,
        ranks=tuple(report.profile for report in reports if report.profile is not None),
        operations=seen.operations,
        trace=trace if isinstance(trace, bytes) else None,
        trace_problem=trace.reason if isinstance(trace, NoProfile) else None,
    )


def _started(basis: ProfileBasis) -> profile:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if basis == "device" else [])]
    # Neither shapes nor stacks: they cost time, and stacks are paths of files.
    profiler = profile(activities=activities)
    profiler.start()
    return profiler


def _do(steps: ProfiledSteps, context: Context) -> None:
    status = context.status
    status.phase, status.step, status.num_steps = "profile", 0, steps.num_steps
    dist.barrier()
    door.synchronize(context.device)
    with record_function(PROFILE):
        for number in range(steps.num_steps):
            with record_function(STEP):
                with record_function(DATA_WAIT):
                    batches = steps.batches(number)
                steps.train(batches)
            status.step = number + 1
        door.synchronize(context.device)


def _seen(profiler: profile, basis: ProfileBasis, steps: ProfiledSteps) -> _Seen:
    profiler.stop()
    spans = _spans(profiler)
    shares, operations = sum_up(spans, basis, steps.num_steps)
    return _Seen(profile=shares, operations=operations, spans=spans)


def _spans(profiler: profile) -> list[Span]:
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    if not results:
        raise NothingRecorded("the profiler has no results")
    spans = []
    for event in results.events():
        if (kind := _KINDS.get(event.activity_type())) is not None:
            on_device = kind in ("kernel", "copy")
            lane = event.device_resource_id() if on_device else event.start_thread_id()
            spans.append(
                Span(event.name(), kind, lane, event.start_ns(), event.end_ns(), event.correlation_id())
            )
    return spans


def _trace(spans: list[Span]) -> bytes | NoProfile:
    trace = _tried(lambda: chrome_trace(spans, rank=0))
    return trace if trace is not None else NoProfile(reason=f"it is larger than {MOST_BYTES / 2**20:.0f} MiB")


def _report(seen: _Seen | NoProfile) -> _RankReport:
    if isinstance(seen, NoProfile):
        return _RankReport(profile=None, problem=seen.reason)
    return _RankReport(profile=seen.profile, problem=None)


def _tried(attempt: Callable[[], T]) -> T | NoProfile:
    try:
        return attempt()
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")
        return NoProfile(
            reason=line if isinstance(error, NothingRecorded) else f"{type(error).__name__}: {line}"
        )
