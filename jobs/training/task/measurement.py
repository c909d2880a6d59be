"""The result that a worker group reports for one run, measured or failed. Plain data. Needs no torch."""

from dataclasses import dataclass, field, replace
from typing import Literal

from cluster.telemetry.summary import Watched
from jobs.training.task.search.largest_batch import BatchSearch
from jobs.training.task.skipping import RecordedStretches

Status = Literal[
    "ok",
    "oom",
    "unschedulable",
    "timeout",
    "hang",
    "crash",
    "invalid_loss",
    "device_mismatch",
]
ProfileBasis = Literal["device", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLoss:
    """The loss went wrong between ``good_step``, the last good one, and ``step``.

    A generation of any step after ``good_step`` may be spoilt. ``samples`` is the range of positions in the
    run's stream that the steps in between read: first position, and the end, which is not included. Of a
    mixture they are positions in ``stretches``.
    """

    step: int
    good_step: int
    samples: tuple[int, int]
    stretches: RecordedStretches = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Before ``step`` ranks did not compute alike. After ``clean_step`` steps they did; None if they never
    did in this attempt. ``nodes`` are those of the ranks at fault, by the names that ranks know; empty if
    nobody knows who is.
    """

    step: int
    clean_step: int | None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run has no numbers. ``log_tail`` holds at most the last 20 lines.

    ``wanted_bytes`` is the size of the allocation that failed, if known. ``nodes`` are those of ``ranks``, or
    all nodes if no rank is named. ``nodes`` is empty if the run was never placed or the nodes are unknown.
    ``step`` is how many steps of a long run were done. ``is_hand_over_refused``: its ranks do not compute as
    the group that saved the checkpoint. ``search`` is how far a search had come.
    """

    status: Status
    reason: str
    phase: str | None = None
    wanted_bytes: int | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    step: int | None = None
    bad_loss: BadLoss | None = None
    corruption: Corruption | None = None
    is_hand_over_refused: bool = False
    search: BatchSearch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank's own view of the window. Device memory is None without an accelerator.

    ``watched`` sums up the device's telemetry; empty if there is none.
    """

    rank: int
    node: str
    device: str
    device_id: str
    total_s: float
    p50_s: float
    p95_s: float
    max_s: float
    mean_loss: float
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocator_retries: int | None = None
    device_memory_bytes: int | None = None
    device_used_bytes: int | None = None
    host_peak_growth_bytes: int
    watched: Watched = field(default_factory=Watched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the numbers depend on besides the recipe: versions, device and variables, as rank 0 has them, and
    the fingerprint of all ranks.
    """

    platform: Literal["cpu", "cuda", "rocm"]
    python: str
    torch: str
    packages: dict[str, str]
    driver: str | None
    collectives: str
    device: str | None
    variables: dict[str, str]
    fingerprint: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the profiled steps. Shares of the time may add up to more than 1.

    On a CPU the time is the operator's own, without that of the operators that it calls.
    """

    name: str
    share: float
    calls_per_step: float
    seconds_per_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """One rank's profiled steps: shares of its profiled time. ``idle`` is the device's; None on a CPU."""

    step_s: float
    communication: float
    exposed_communication: float
    data_wait: float
    idle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The steps that were profiled after the window. ``basis`` says by which definition; see ``spans``.

    ``operations`` and ``trace`` are rank 0's. ``trace`` is a Chrome trace in gzip; if it is None,
    ``trace_problem`` says why.
    """

    basis: ProfileBasis
    num_steps: int
    ranks: tuple[RankProfile, ...]
    operations: tuple[Operation, ...]
    trace: bytes | None = field(default=None, repr=False)
    trace_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProfile:
    """A profile was asked for, and there is none. The run's numbers are whole all the same."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run's numbers. Step times are the maxima over ranks, losses the means over ranks.

    ``window_s`` is the slowest rank's total. ``h2d_*`` are about copies from host to device; None on a CPU,
    where nothing is copied. ``losses`` begin at whatever step the warm-up ended. ``reference_loss`` is the
    loss of a step that every run of a sweep passes, so it can be compared between strategies.
    ``recompilations`` are those of the window, of the rank with most; None where nothing is compiled.
    ``search`` is the search whose answer was measured. ``profile`` is None if none was asked for.
    """

    run_id: str
    warmup_steps: int
    warmup_rule: str
    window_s: float
    step_times_s: tuple[float, ...]
    losses: tuple[float, ...]
    reference_step: int
    reference_loss: float
    ranks: tuple[RankSummary, ...]
    h2d_bytes_per_step: int | None
    h2d_s_per_step: float | None
    setup_s: float
    warmup_s: float
    environment: Environment
    recompilations: int | None = None
    attention_kernel: str | None = None
    profile: Profile | NoProfile | None = None
    search: BatchSearch | None = None

    def unprofiled(self, failure: Failure) -> "Measurement":
        """These numbers, of a run that failed while it was profiled."""
        return replace(self, profile=NoProfile(reason=f"{failure.status}: {failure.reason}"))
