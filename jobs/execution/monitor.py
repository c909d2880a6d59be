"""Follows one worker group for its driver, whatever its work: posts in, and the reason to end it out. Pure.

What only effects can tell (the time, what a dead worker left behind) comes in as an argument.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from cluster.probe.broken_ways import ends_to_leave
from jobs.execution.board import Assembled, Departed, Leaving, Left, Lost, Post, Raised, Ready
from jobs.execution.causes import is_echo, speaks_of_peer
from jobs.execution.hang_detection import HangDetection
from jobs.execution.messages import Heartbeat, SessionLimits
from jobs.execution.rank_failures import RankFailures, failure_of_loss
from jobs.training.health.postmortem import Postmortem
from jobs.training.task.measurement import Failure

# From the workers' placement until all have met: processes, imports from a slow disk, a first collective.
START_TIMEOUT_S = 300.0
# From the last rank's last report until the worker group is gone by itself.
_END_TIMEOUT_S = 300.0
_MOST_NAMED = 8
# A rank that writes its last state is waited for no longer.
_MOST_LEAVING_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenWay:
    """From a node that does not reach another one."""

    node_id: str
    host: str
    other_id: str
    other_host: str

    def told(self, first_ranks: Mapping[str, int]) -> str:
        rank, other = first_ranks[self.node_id], first_ranks[self.other_id]
        return f"rank {rank} on {self.host} does not reach rank {other} on {self.other_host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is asked about ranks that cannot report themselves; each answer may take seconds.

    ``remains`` is what a lost rank left on its node, which is given by its id. ``last_lines`` is what can be
    learnt of ranks that stand still. ``unmet`` is the failure of ranks that did not join in so many seconds.
    ``broken_ways`` are those between nodes.
    """

    remains: Callable[[str, Ready], Postmortem | None]
    last_lines: Callable[[Sequence[tuple[str, Ready]]], tuple[str, ...]]
    unmet: Callable[[tuple[int, ...], float], Failure]
    broken_ways: Callable[[Sequence[str]], Sequence[BrokenWay]]


class GroupMonitor:
    def __init__(self, world_size: int, limits: SessionLimits, now: float, inquiry: Inquiry) -> None:
        self.node_ids: tuple[str, ...] = ()
        self.ready: dict[int, Ready] = {}
        self.lost: dict[int, Lost] = {}
        self._world_size = world_size
        self._limits = limits
        self._inquiry = inquiry
        self._since = now
        self._steps: dict[int, int] = {}
        self._departed: dict[int, float] = {}
        self._step_s = 0.0
        self._progress: HangDetection | None = None
        self._troubles = RankFailures(world_size)

    @property
    def is_met(self) -> bool:
        """Whether all ranks have met."""
        return len(self.ready) == self._world_size

    @property
    def is_in_trouble(self) -> bool:
        """Whether any rank has raised or was lost."""
        return bool(self._troubles)

    def unheard(self) -> tuple[int, ...]:
        """The ranks that have told nothing of their end, while those that have speak of a peer that is
        gone.
        """
        failure = self._troubles.failure()
        if failure is None or not is_echo(failure.reason):
            return ()
        return tuple(filter(self._troubles.is_silent, range(self._world_size)))

    def left_s(self, num_steps: int) -> float:
        """Seconds for the remaining steps if each takes as long as the last one; infinite before the
        first.
        """
        return (num_steps - max(self._steps.values())) * self._step_s if self._step_s else inf

    def nodes(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """The ids of these ranks' nodes, each once. Ranks that were not placed have none."""
        return tuple(dict.fromkeys(self.node_ids[rank] for rank in ranks if rank < len(self.node_ids)))

    def goes_on_to_next(self, now: float) -> None:
        """Starts the clock of the group's next job: each job has its own time."""
        self._progress = HangDetection(self._limits, self._world_size, now)

    def hear(self, post: Post, now: float) -> None:
        match post:
            case Assembled():
                self.node_ids, self._since = post.node_ids, now
            case Ready():
                self.ready[post.rank] = post
                if self.is_met:
                    self.goes_on_to_next(now)
            case Heartbeat():
                self._steps[post.rank], self._step_s = post.step, post.step_s
                if self._progress:
                    self._progress.note(post, now)
            case Departed() if self._progress:
                self._progress.forget(post.rank)
                self._departed[post.rank] = now
            case Leaving():
                # In this order, so that what is no number counts as the most.
                self._troubles.leaves(post.rank, now + min(_MOST_LEAVING_S, post.seconds))
            case Left():
                self._troubles.left(post.rank)
            case Raised():
                self._troubles.raised(post.rank, post.failure, now)
            case Lost() if post.rank not in self._troubles:
                self._lose(post, now)

    def verdict(self, now: float) -> Failure | None:
        """Why the group must end now: trouble on which every rank has reported, or no sign of progress."""
        if self._troubles:
            return self.failure() if self._troubles.is_all_told(now) else None
        if self._progress is None:
            return self._false_start(now)
        if failure := self._progress.failure(now):
            if failure.status == "hang" and not self._progress.silent(now):
                failure = self._with_ways(failure)
            return replace(failure, log_tail=self._last_lines(failure.ranks or (0,)))
        return self._no_end(now)

    def have_left(self, failure: Failure, since: float, now: float) -> bool:
        """Whether the ranks without a part in ``failure`` have left their last state, or had their time
        ``since`` they were told to. Of trouble there is no verdict before.
        """
        return self.is_in_trouble or self._troubles.is_done(failure.ranks, since, now)

    def failure(self) -> Failure | None:
        """What the ranks have reported so far, if anything went wrong."""
        return self._troubles.failure()

    def held_against(self, failure: Failure) -> tuple[int, ...]:
        """The ranks that a failure counts against.

        A rank that says in a collective that a peer is gone doesn't speak of itself. The peer is among those
        that have said nothing, who are held responsible only where they are on one node. Of other connections
        that fail, as to a store, or of a network card of one's own, nobody knows whose fault it is.
        """
        if self.lost.keys() & set(failure.ranks) or not is_echo(failure.reason):
            return failure.ranks
        if not speaks_of_peer(failure.reason):
            return ()
        silent = tuple(filter(self._troubles.is_silent, range(self._world_size)))
        return silent if len(self.nodes(silent)) == 1 else ()

    def with_step(self, failure: Failure) -> Failure:
        """The failure with the step of its ranks: of the one that was furthest behind."""
        steps = [self._steps[rank] for rank in failure.ranks if rank in self._steps]
        return failure if failure.step is not None or not steps else replace(failure, step=min(steps))

    def _with_ways(self, failure: Failure) -> Failure:
        """The failure of ranks that stand still, which names those that do not reach each other, if there are
        any. Held responsible are then those without whom the others can go on, as ``ends_to_leave`` says.
        """
        nodes = self.nodes(tuple(range(self._world_size)))
        found = self._inquiry.broken_ways(nodes) if len(nodes) > 1 else ()
        if not found:
            return failure
        first = {node: rank for rank, node in reversed([*enumerate(self.node_ids)])}
        left = ends_to_leave((first[way.node_id], first[way.other_id]) for way in found)
        named = "; ".join(way.told(first) for way in found[:_MOST_NAMED])
        more = f", and {len(found) - _MOST_NAMED} more ways" if len(found) > _MOST_NAMED else ""
        ranks = [rank for rank, node in enumerate(self.node_ids) if first[node] in left]
        return replace(failure, reason=f"{failure.reason}; {named}{more}", ranks=tuple(ranks))

    def _last_lines(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        return self._inquiry.last_lines([(self.node_ids[rank], self.ready[rank]) for rank in ranks])

    def _false_start(self, now: float) -> Failure | None:
        """Ray Train itself gives up workers that it cannot place in time. This is for workers that were
        placed and never met.
        """
        limit_s = START_TIMEOUT_S + (0 if self.node_ids else self._limits.schedule_timeout_s)
        if now - self._since <= limit_s:
            return None
        return self._inquiry.unmet(tuple(sorted(set(range(self._world_size)) - set(self.ready))), limit_s)

    def _no_end(self, now: float) -> Failure | None:
        """The failure of a group whose ranks are all done, but which Ray does not end."""
        is_over = len(self._departed) == self._world_size
        if not is_over or now - max(self._departed.values()) <= _END_TIMEOUT_S:
            return None
        reason = f"all ranks are done, and their worker group did not end within {_END_TIMEOUT_S:.0f} s"
        return Failure(status="hang", reason=reason)

    def _lose(self, lost: Lost, now: float) -> None:
        """Records the loss of a rank. A node that is gone is not asked: the question would only take time."""
        self.lost[lost.rank] = lost
        ready = self.ready.get(lost.rank)
        remains = None
        if ready and not lost.is_of_node:
            remains = self._inquiry.remains(self.node_ids[lost.rank], ready)
        phase = self._progress.phase if self._progress else None
        self._troubles.lost(lost.rank, failure_of_loss(lost, ready, remains, phase), now)


def did_not_join(ranks: tuple[int, ...], limit_s: float) -> Failure:
    """The failure of a session's cells, as their result rows have it."""
    reason = f"ranks {list(ranks)} did not join their process group within {limit_s:.0f} s"
    return Failure(status="crash", reason=reason, ranks=ranks)


def did_not_meet(ranks: tuple[int, ...], limit_s: float) -> Failure:
    """The failure of an attempt: the policy counts it as a hang."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return Failure(status="hang", reason=f"{who} did not meet the others within {limit_s:.0f} s", ranks=ranks)
