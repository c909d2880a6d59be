"""The board where worker groups leave posts for the driver, and the posts themselves. Pure: Ray only carries
it.

Workers and Train's controller push and the driver fetches, so a busy driver blocks nobody. Posts that wait
stay bounded: of heartbeats only each rank's newest is kept. In the other direction there are two messages:
the driver's stop request to a group, which the group's rank 0 fetches, and its wish that ranks leave their
last state, which the group's controller fetches.
"""

from dataclasses import dataclass

from jobs.execution.messages import Heartbeat, Started
from jobs.training.task.events import RunEvent
from jobs.training.task.measurement import Failure, Measurement
from jobs.training.task.search.largest_batch import BatchSearch
from jobs.training.task.stop_request import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The worker processes exist. ``node_ids`` are in the order of their ranks."""

    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The rank has met its peers.

    ``logs`` are the files that its process writes to, on its node. ``oom_kills`` is how many processes the
    kernel of that node had killed for lack of memory by then. On request the process ``pid`` writes its
    stacks into the file ``stacks``. ``threads`` is the number of threads that the process was told to use,
    empty if none.
    """

    rank: int
    logs: tuple[str, ...]
    oom_kills: int
    pid: int = 0
    stacks: str = ""
    threads: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The numbers of one job that now profiles steps, from rank 0. ``Done`` follows, if all goes well."""

    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The measurement of one job, from rank 0."""

    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """How far the search of one job is, and what rank 0 is about to try."""

    run_id: str
    search: BatchSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The rank leaves its last state in its host's memory, which takes so many seconds at most."""

    rank: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The rank has left its last state, or has none to leave: it may be ended."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The exception of one rank in one job."""

    run_id: str
    rank: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """The rank has done its part of a long run's attempt, and reports nothing more."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The controller's report of a lost rank: its process ended, or it raised outside of any job.

    ``is_silent``: its node stopped answering, and was not seen to end.
    """

    rank: int
    reason: str
    is_death: bool
    is_out_of_memory: bool
    is_preempted: bool = False
    is_silent: bool = False

    @property
    def is_of_node(self) -> bool:
        """Whether the rank's whole node is gone."""
        return "its node" in self.reason


Post = (
    Assembled | Ready | Started | Searching | Heartbeat | Measured | Done | Departed | Raised | Lost
    | Leaving | Left | RunEvent
)  # fmt: skip


class Board:
    """An actor on the driver's node. Each post is kept under the name of its worker group and is taken
    once.
    """

    def __init__(self) -> None:
        self._posts: list[tuple[str, Post]] = []
        self._beats: dict[tuple[str, int], Heartbeat] = {}
        self._stop_requests: dict[str, StopRequest] = {}
        self._condemned: set[str] = set()

    def post(self, group: str, post: Post) -> None:
        if isinstance(post, Heartbeat):
            self._beats[group, post.rank] = post
        else:
            self._posts.append((group, post))

    def take(self) -> list[tuple[str, Post]]:
        """All posts since the last call, in order, heartbeats last."""
        taken = [*self._posts, *((group, beat) for (group, _), beat in self._beats.items())]
        self._posts, self._beats = [], {}
        return taken

    def request_stop(self, group: str, stop_request: StopRequest) -> None:
        self._stop_requests[group] = stop_request

    def condemn(self, group: str) -> None:
        """The group is about to be ended: its ranks may leave their last state."""
        self._condemned.add(group)

    def is_condemned(self, group: str) -> bool:
        return group in self._condemned

    def stop_request(self, group: str) -> StopRequest | None:
        return self._stop_requests.get(group)
