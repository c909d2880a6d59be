"""How an attempt of a long run ended, as a value. From launch to recovery and on nobody raises one.

What is raised is what nobody expects: a bug, and Ctrl-C.
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

# Errors whose message says all there is to say.
EXPECTED = (SpecError, ClusterError, NothingToResume, Unfit, Fenced, StoreError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """All steps are done, or it has saved and ended as it was asked to.

    ``pointer`` is the generation that Ray's own result points at.
    """

    pointer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Somebody wishes the run to stop while nothing goes on that could be saved."""

    wish: StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """``failure`` is the first thing that went wrong on any rank. ``nodes`` are those that all ranks ran on,
    if it came so far. Also an attempt that was to move on has failed, of the cause ``preempted``.
    """

    failure: Failure
    cause: Cause
    nodes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        # Who hangs is named by the sentence itself.
        who = "" if self.failure.status == "hang" else _ranks(self.failure.ranks)
        return f"{who}{self.failure.reason}"

    @property
    def log_tail(self) -> tuple[str, ...]:
        """What the rank that failed said last."""
        return self.failure.log_tail

    @property
    def message(self) -> str:
        return "\n  ".join([self.reason, *self.log_tail])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway:
    """The driver itself did not reach the run's store, before or after the attempt had begun."""

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
    """Another attempt would end the same way: it is the user's turn, or the run is another driver's now."""

    error: Exception


# What another attempt may mend.
Setback = Failed | StoreAway
Outcome = Completed | Cancelled | Setback | Unmendable


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """It makes no sense to try again, for ``why``. The cause is on the last line, after the log's tail."""

    why: str
    cause: str
    log_tail: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return "\n".join([*(f"  {line}" for line in self.log_tail), f"given up, {self.why}: {self.cause}"])


class LastWord:
    """Hands on what an attempt tells, and remembers how it said that it ended."""

    def __init__(self, hear: Callable[[RunEvent | Heartbeat], None]) -> None:
        self._hear = hear
        self._told: Ended | Withdrawn | None = None

    def hear(self, told: RunEvent | Heartbeat) -> None:
        if isinstance(told, Ended | Withdrawn):
            self._told = told
        self._hear(told)

    def judge(self, outcome: Outcome) -> Outcome:
        """Of an attempt that ended in order it is its own word that counts."""
        match outcome, self._told:
            case Completed(), Ended(wish=StopRequest(aim="move on") as wish):
                return moved_on(wish)
            case Completed(), Withdrawn(wish=wish):
                return withdrawn(wish)
        return outcome


def outcome_of(error: Exception) -> StoreAway | Unmendable:
    """``error`` is one of those ``EXPECTED``."""
    return StoreAway(reason=str(error)) if isinstance(error, Unavailable) else Unmendable(error=error)


def withdrawn(wish: StopRequest, nodes: tuple[str, ...] = ()) -> Cancelled | Failed:
    """What a wish means to an attempt that has nothing to save."""
    return Cancelled(wish=wish) if wish.aim == "stop" else moved_on(wish, nodes)


def moved_on(wish: StopRequest, nodes: tuple[str, ...] = ()) -> Failed:
    """Nobody's fault, and nothing is lost: the next attempt goes on from what this one saved."""
    return crashed(wish.why, "preempted", nodes)


def crashed(reason: str, cause: Cause, nodes: tuple[str, ...] = ()) -> Failed:
    """What no rank told of."""
    return Failed(failure=Failure(status="crash", reason=reason), cause=cause, nodes=nodes)


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    return f"rank {ranks[0]}: " if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}: "
