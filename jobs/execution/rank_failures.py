"""Collects what the ranks of one worker group report as failures, until enough ranks have reported. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from cluster.local_ray.timeouts import asked_every_s
from jobs.execution.board import Lost, Ready
from jobs.execution.causes import is_abort, is_echo
from jobs.training.health.postmortem import Postmortem
from jobs.training.task.measurement import Failure

# A failure is often the echo of another rank's: a killed peer first shows as a closed connection.
GRACE_S = 2.0


class RankFailures:
    """The failures of one worker group; false while there are none. Of each rank the first report counts."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        # Of many ranks the controller tells later who died: it sleeps for an interval, and may wait as long
        # for a rank that does not answer.
        self._grace_s = GRACE_S + 2 * (asked_every_s(world_size) - asked_every_s(1))
        self._by_rank: dict[int, Failure] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._since: float | None = None
        self._leaving: dict[int, float] = {}
        self._left: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._by_rank)

    def __contains__(self, rank: int) -> bool:
        return rank in self._by_rank

    def raised(self, rank: int, failure: Failure, now: float) -> None:
        self._tell(rank, failure, now, is_lost=False)

    def lost(self, rank: int, failure: Failure, now: float) -> None:
        self._tell(rank, failure, now, is_lost=True)

    def leaves(self, rank: int, until: float) -> None:
        """The rank leaves its last state: it is waited for, but not for longer, whatever it says later."""
        self._leaving.setdefault(rank, until)

    def left(self, rank: int) -> None:
        self._left.add(rank)

    def is_silent(self, rank: int) -> bool:
        """Whether the rank has neither reported nor left."""
        return rank not in self._by_rank and rank not in self._left

    def is_done(self, without: Collection[int], since: float, now: float) -> bool:
        """Whether every rank but those ``without`` has reported or left, or has had its time by now."""
        ranks = set(range(self._world_size)) - set(without)
        missing = [rank for rank in ranks if self.is_silent(rank)]
        if not missing:
            return True
        return now - since > self._grace_s and all(self._leaving.get(rank, 0.0) <= now for rank in missing)

    def is_all_told(self, now: float) -> bool:
        """Whether every rank has reported, or the missing ones have had their time to do so."""
        return self._since is not None and self.is_done((), self._since, now)

    def failure(self) -> Failure | None:
        told = sorted(self._by_rank, key=self._places.__getitem__)
        return one_failure([self._by_rank[rank] for rank in told]) if told else None

    def _tell(self, rank: int, failure: Failure, now: float, *, is_lost: bool) -> None:
        if rank not in self._by_rank:
            self._by_rank[rank] = failure
            self._places[rank] = _nearness(failure.reason, is_lost=is_lost), len(self._places)
        self._since = now if self._since is None else self._since


def _nearness(reason: str, *, is_lost: bool) -> int:
    """How near to the cause a rank's end is; of equally near ones the first counts.

    A rank that is gone comes before what its peers make of it: they raise that a connection has closed, or
    abort, as under NCCL. An abort may also be the cause, but never beside a rank that ended otherwise.
    """
    if is_lost and not is_abort(reason):
        return 0
    return 2 if is_echo(reason) else 1


def one_failure(failures: Sequence[Failure]) -> Failure:
    """The most telling of several ranks' failures, with all ranks that report the same.

    A failure of a specific kind outweighs a crash, because the peers of such a rank only see it vanish. Among
    equals the first counts.
    """
    told = next((failure for failure in failures if failure.status != "crash"), failures[0])
    same = [failure for failure in failures if _essence(failure) == _essence(told)]
    return replace(told, ranks=tuple(sorted({rank for failure in same for rank in failure.ranks})))


def _essence(failure: Failure) -> tuple[str, str, str | None]:
    return failure.status, failure.reason, failure.phase


def failure_of_loss(
    lost: Lost, ready: Ready | None, remains: Postmortem | None, phase: str | None = None
) -> Failure:
    """The failure of a lost rank. ``ready`` is its report when it began, ``remains`` what was found on its
    node.
    """
    was_starved = bool(ready and remains and remains.oom_kills > ready.oom_kills)
    return Failure(
        status="oom" if lost.is_out_of_memory or was_starved else "crash",
        reason=_reason(lost, remains, was_starved),
        phase=phase,
        ranks=(lost.rank,),
        log_tail=remains.log_tail if remains else (),
    )


def _reason(lost: Lost, remains: Postmortem | None, was_starved: bool) -> str:
    if was_starved:
        return f"{lost.reason}; the kernel of its node ended a process for want of memory meanwhile"
    if remains is None or not lost.is_death:
        return lost.reason
    return f"{lost.reason}: {remains.signal or 'without a word in its log, as SIGKILL leaves it'}"
