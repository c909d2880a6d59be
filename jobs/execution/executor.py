"""The protocol of executors, which carry out sessions and attempts: Ray, or this process and its peers.

Neither torch nor Ray is imported before there is something to run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.inventory import Inventory, WorkerGroup
from jobs.execution.messages import Event, Heartbeat, Session, SessionLimits, Upcoming, WayRate
from jobs.execution.outcomes import Outcome, StoreAway, Unmendable
from jobs.training.task.events import RunEvent
from jobs.training.task.job import Strategy
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

Listen = Callable[[Event], None]
Hear = Callable[[RunEvent | Heartbeat], None]
# The task, or how the attempt ended before there was a task.
MakeTask = Callable[[], Task | StoreAway | Unmendable]
# A group's sessions; each is asked for when those before it are done and their events were heard. None: the
# group waits for another one, and is asked again soon.
Queues = Mapping[str, Iterable[Session | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """Where and how an attempt is to run. The nodes ``without`` are avoided as long as there is room
    elsewhere.

    ``may_wait``: the run has run before, so room that is missing now may come back soon. ``stop_request``
    returns the present one and is called again and again; a stop request is never taken back.
    ``keeps_spares``: processes for the next attempt may wait beside this one. With a ``strategy``, what its
    workers load may then be loaded before the first attempt too.
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
    strategy: Strategy | None = None
    stop_request: Callable[[], StopRequest | None] = lambda: None


class PeersFailed(Exception):
    """A run failed under ``torchrun``: its result row is written, but this process cannot go on with its
    peers.
    """


class Executor(Protocol):
    """Carries out sessions and attempts. Used as a context; what the executor connected to or started ends
    with it.

    Several processes may carry out one sweep together: the main process prints and judges.
    """

    @property
    def is_main_process(self) -> bool: ...

    @property
    def can_retry(self) -> bool:
        """Whether another attempt may follow a failed one in this process."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def inventory(self) -> Inventory:
        """The devices to plan with; starts nothing."""

    def can_run(self, world_size: int) -> bool:
        """Whether this start can carry out a cell of that world size."""

    def describe(self) -> str:
        """What the executor can run, for messages."""

    def starts(self) -> str:
        """What ``groups`` starts first, for people; empty if that takes no time."""

    def groups(
        self, planned: dict[str, WorkerGroup], upcoming: Upcoming | None = None
    ) -> dict[str, WorkerGroup]:
        """The groups as they are now, right before the work begins: starts what must run.

        What the workers of ``upcoming`` sessions will load may be loaded meanwhile, once for all of them.
        """

    def run(self, queues: Queues, limits: SessionLimits, listen: Listen) -> None: ...

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        """The sizes among ``wanted``, ascending, between which a run on this group may change."""

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int | None:
        """How many more ranks fit now, on nodes other than ``without``; None if unknown."""

    def num_there(self, group: WorkerGroup) -> int | None:
        """How many devices the group has now, also those that are in use; None if unknown. Those of a node
        that drains, or that the user left out, don't count.
        """

    def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> Collection[frozenset[str]] | None:
        """The pairs of these nodes that do not reach each other; None if not all of them tell."""

    def way_rates(
        self, group: WorkerGroup, nodes: Sequence[str], is_wanted: Callable[[], bool]
    ) -> Sequence[WayRate] | None:
        """How fast some ways between these nodes are, each node's own among them. Beside an attempt, in
        another thread. None if that can't be tried, or soon after it ``is_wanted`` no more.
        """

    def attempt(self, order: AttemptOrder, make_task: MakeTask, hear: Hear) -> Outcome:
        """Carries out one attempt of a long run, however it ends.

        Each attempt looks anew which nodes there are. ``make_task`` is called once, by the process that
        is the main one, when the others are there.
        """
