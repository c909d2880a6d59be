"""What a launcher is asked for, and what it reports while it works: plain data. Needs neither torch nor Ray.

A *session* is one life of one worker group: fresh processes that work through a list of jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpointing.saving.save import Upload
from cluster.inventory import WorkerGroup
from jobs.training.preload import Work
from jobs.training.task.context import Phase
from jobs.training.task.job import Job, Strategy
from jobs.training.task.measurement import Failure, Measurement

# Each rank sends this often. All heartbeats go through one actor: of very many ranks each sends more seldom.
BEAT_INTERVAL_S = 0.5
_MOST_BEATS_PER_S = 2048


def beat_interval_s(world_size: int) -> float:
    """Seconds between two heartbeats of a rank: half a second for up to 1,024 ranks."""
    return max(BEAT_INTERVAL_S, world_size / _MOST_BEATS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Jobs of one world size for one worker group, in the order in which they run.

    ``environment`` is set in every worker process before it starts.
    """

    group: WorkerGroup
    jobs: tuple[Job, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self.jobs[0].recipe.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """What is known of sessions or attempts on CPUs before the first one: what their workers will load.

    ``environment`` is theirs; workers with another one load for themselves.
    """

    environment: Mapping[str, str]
    strategies: tuple[Strategy, ...]
    work: Work = "cells"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The times after which a run is given up. ``hang_timeout_s`` is the least time without a step that
    counts.

    ``patience_s`` is how long a rank may spend on work that is no step, by the name that it reports in
    ``doing``.
    """

    schedule_timeout_s: float
    cell_timeout_s: float
    hang_timeout_s: float = 30.0
    patience_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Where one rank is right now; fields as in ``RankStatus``. Sent every ``beat_interval_s`` while a run
    goes on. The driver adds the rank's ``node``, where it knows it.

    ``device_step`` is the last step that the rank's device has done, and ``device_marks`` tells how far it is
    in the next, see ``DeviceMarks``; None where nothing is launched ahead of a device. ``upload`` is that
    of the rank's newest share of a save.
    """

    run_id: str
    rank: int
    phase: Phase
    step: int
    num_steps: int
    step_s: float
    memory_bytes: int
    num_batches: int = 0
    doing: str = ""
    pace_s: float = 0.0
    copy_s: float = 0.0
    utilization_pct: float | None = None
    power_watts: float | None = None
    node: str = ""
    device_step: int | None = None
    device_marks: int = 0
    upload: Upload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WayRate:
    """How fast bytes went from one host of an attempt to another one."""

    sender: str
    receiver: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a run: exactly one for each job of each session, unless interrupted."""

    run_id: str
    outcome: Measurement | Failure


Event = Started | Heartbeat | Finished
