"""Who carries out sessions and attempts: Ray, or this process with its peers under ``torchrun``.

Neither torch nor Ray is imported before there is something to run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.inventory import Inventory, WorkerGroup
from jobs.execution.messages import Event, Heartbeat, Session, SessionLimits
from jobs.execution.outcomes import Outcome, StoreAway, Unmendable
from jobs.training.task.events import RunEvent
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

Listen = Callable[[Event], None]
Hear = Callable[[RunEvent | Heartbeat], None]
# The task, or how the attempt ended before there was one.
MakeTask = Callable[[], Task | StoreAway | Unmendable]
Queues = dict[str, list[Session]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """Where an attempt is to run, and ``without`` which nodes, as long as there is room elsewhere.

    ``may_wait``: the run has run before, so where there is no room now there may soon be. ``wish`` is what is
    wished right now, asked again and again; once there, it is not taken back. ``keeps_spares``: what
    the next attempt needs may wait beside this one.
    """

    group: WorkerGroup
    world_size: int
    environment: Mapping[str, str]
    schedule_timeout_s: float
    collective_timeout_s: float
    hang_timeout_s: float = 30.0
    without: tuple[str, ...] = ()
    may_wait: bool = False
    keeps_spares: bool = False
    wish: Callable[[], StopRequest | None] = lambda: None


class PeersFailed(Exception):
    """A run failed under ``torchrun``: its row is there, but this process can't go on with the others."""


class Executor(Protocol):
    """Used as a context; what it connected to or started ends with it.

    Of several processes that carry out one sweep together, the one that ``speaks`` prints and judges.
    """

    @property
    def speaks(self) -> bool: ...

    @property
    def can_retry(self) -> bool:
        """Whether another attempt may follow a failed one in this process."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def inventory(self) -> Inventory:
        """What is there to plan with; starts nothing."""

    def can_run(self, world_size: int) -> bool:
        """Whether a cell of that world size can be carried out by this start."""

    def describe(self) -> str:
        """What it can run, for messages."""

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        """The groups as they are now that it gets serious: starts what must run."""

    def run(self, queues: Queues, limits: SessionLimits, listen: Listen) -> None: ...

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        """Those of the world sizes ``wanted``, ascending, between which a run on this group may change."""

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int | None:
        """For how many more ranks there is room now, on other nodes than these; None: nobody knows."""

    def attempt(self, order: AttemptOrder, make_task: MakeTask, hear: Hear) -> Outcome:
        """One attempt of a long run, however it ends.

        Each attempt looks anew what nodes there are. ``make_task`` is called once, by the process that
        speaks, when the others are there.
        """
