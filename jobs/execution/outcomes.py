"""How an attempt of a long run ended, as a value. From launch to recovery nobody raises an outcome.

Only what nobody expects is raised: a bug, and Ctrl-C.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkpointing.errors import Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import StoreError, Unavailable
from cluster.inventory import ClusterError
from jobs.commandline.usage_error import SpecError
from jobs.execution.causes import Cause
from jobs.execution.messages import Heartbeat
from jobs.training.task.events import Ended, RunEvent, Withdrawn
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest

# The message of these errors is enough for a user.
EXPECTED = (SpecError, ClusterError, NothingToResume, Unfit, Fenced, StoreError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """All steps are done, or the attempt has saved and ended as requested.

    ``pointer`` is the generation that Ray's own result points at.
    """

    pointer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A stop request came while nothing was running that could be saved."""

    stop_request: StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """``failure`` is the first thing that went wrong on any rank. ``nodes`` are those of all ranks, if they
    were placed.

    An attempt that ended in order to move on has also failed, with the cause ``preempted``.
    """

    failure: Failure
    cause: Cause
    nodes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        # The reason of a hang already names the ranks.
        who = "" if self.failure.status == "hang" else _ranks(self.failure.ranks)
        return f"{who}{self.failure.reason}"

    @property
    def log_tail(self) -> tuple[str, ...]:
        """The last log lines of the rank that failed."""
        return self.failure.log_tail

    @property
    def message(self) -> str:
        return "\n  ".join([self.reason, *self.log_tail])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway:
    """The driver itself could not reach the run's store, before or after the attempt had begun."""

    reason: str

    @property
    def cause(self) -> Cause:
        return "store"

    @property
    def log_tail(self) -> tuple[str, ...]:
        return ()

    @property
    def message(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmendable:
    """Another attempt would end the same way: the user must act, or the run belongs to another driver now."""

    error: Exception


# Another attempt may succeed after these.
Setback = Failed | StoreAway
Outcome = Completed | Cancelled | Setback | Unmendable


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Trying again makes no sense: ``why``. The message ends with the cause, after the log tail."""

    why: str
    cause: str
    log_tail: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return "\n".join([*(f"  {line}" for line in self.log_tail), f"given up, {self.why}: {self.cause}"])


class LastWord:
    """Passes on what an attempt reports, and remembers how the attempt said that it ended."""

    def __init__(self, hear: Callable[[RunEvent | Heartbeat], None]) -> None:
        self._hear = hear
        self._told: Ended | Withdrawn | None = None

    def hear(self, told: RunEvent | Heartbeat) -> None:
        if isinstance(told, Ended | Withdrawn):
            self._told = told
        self._hear(told)

    def judge(self, outcome: Outcome) -> Outcome:
        """The outcome of the attempt. If the attempt ended in order, its own report of the end counts."""
        match outcome, self._told:
            case Completed(), Ended(stop_request=StopRequest(aim="move on") as stop_request):
                return moved_on(stop_request)
            case Completed(), Withdrawn(stop_request=stop_request):
                return withdrawn(stop_request)
        return outcome


def outcome_of(error: Exception) -> StoreAway | Unmendable:
    """The outcome of an attempt that ended with ``error``, which is one of ``EXPECTED``."""
    return StoreAway(reason=str(error)) if isinstance(error, Unavailable) else Unmendable(error=error)


def withdrawn(stop_request: StopRequest, nodes: tuple[str, ...] = ()) -> Cancelled | Failed:
    """The outcome of a stop request to an attempt that has nothing to save."""
    return (
        Cancelled(stop_request=stop_request) if stop_request.aim == "stop" else moved_on(stop_request, nodes)
    )


def moved_on(stop_request: StopRequest, nodes: tuple[str, ...] = ()) -> Failed:
    """The outcome of an attempt that moved on: nothing is lost, and the next attempt resumes from what was
    saved.
    """
    return crashed(stop_request.why, "preempted", nodes)


def crashed(reason: str, cause: Cause, nodes: tuple[str, ...] = ()) -> Failed:
    """A failure that no rank reported."""
    return Failed(failure=Failure(status="crash", reason=reason), cause=cause, nodes=nodes)


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    return f"rank {ranks[0]}: " if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}: "
