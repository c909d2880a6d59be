"""One worker group as its driver follows it, whatever it works on: posts in, and why it must end. Pure.

What only effects can tell (the time, what is left of a dead worker) comes in as an argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from jobs.execution.board import Assembled, Departed, Lost, Post, Raised, Ready
from jobs.execution.hang_detection import HangDetection
from jobs.execution.messages import Heartbeat, SessionLimits
from jobs.execution.rank_failures import RankFailures, failure_of_loss
from jobs.training.health.postmortem import Postmortem
from jobs.training.task.measurement import Failure

# From the workers' placement until all have met: processes, imports from a slow disk, a first collective.
START_TIMEOUT_S = 300.0
# From the last rank's last word until the worker group is gone by itself.
_END_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is asked about ranks that can't tell it themselves; each answer may take seconds.

    ``remains`` is what a lost rank left on its node, which is given by its id; ``last_lines`` is what can be
    learnt of ranks that stand still. ``unmet`` words that these ranks did not join in so many seconds.
    """

    remains: Callable[[str, Ready], Postmortem | None]
    last_lines: Callable[[Sequence[tuple[str, Ready]]], tuple[str, ...]]
    unmet: Callable[[tuple[int, ...], float], Failure]


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

    def left_s(self, num_steps: int) -> float:
        """What the rest of the steps takes if each takes as long as the last one; before that, for ever."""
        return (num_steps - max(self._steps.values())) * self._step_s if self._step_s else inf

    def nodes(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """The ids of the nodes of these ranks, each once; of those that were placed."""
        return tuple(dict.fromkeys(self.node_ids[rank] for rank in ranks if rank < len(self.node_ids)))

    def goes_on_to_next(self, now: float) -> None:
        """From one job of the group to the next: each has its own time."""
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
            case Raised():
                self._troubles.raised(post.rank, post.failure, now)
            case Lost() if post.rank not in self._troubles:
                self._lose(post, now)

    def verdict(self, now: float) -> Failure | None:
        """Why it must end now: trouble that every rank has told its part of, or no sign of getting on."""
        if self._troubles:
            return self.failure() if self._troubles.is_all_told(now) else None
        if self._progress is None:
            return self._false_start(now)
        if failure := self._progress.failure(now):
            return replace(failure, log_tail=self._last_lines(failure.ranks or (0,)))
        return self._no_end(now)

    def failure(self) -> Failure | None:
        """What the ranks have told so far, if anything went wrong."""
        return self._troubles.failure()

    def with_step(self, failure: Failure) -> Failure:
        """And how far the ranks were that it is about."""
        steps = [self._steps[rank] for rank in failure.ranks if rank in self._steps]
        return failure if failure.step is not None or not steps else replace(failure, step=min(steps))

    def _last_lines(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        return self._inquiry.last_lines([(self.node_ids[rank], self.ready[rank]) for rank in ranks])

    def _false_start(self, now: float) -> Failure | None:
        """Ray Train itself gives up what can't be placed in time; this is for what was, and never met."""
        limit_s = START_TIMEOUT_S + (0 if self.node_ids else self._limits.schedule_timeout_s)
        if now - self._since <= limit_s:
            return None
        return self._inquiry.unmet(tuple(sorted(set(range(self._world_size)) - set(self.ready))), limit_s)

    def _no_end(self, now: float) -> Failure | None:
        """All ranks have done all they had to; what holds them is Ray's."""
        is_over = len(self._departed) == self._world_size
        if not is_over or now - max(self._departed.values()) <= _END_TIMEOUT_S:
            return None
        reason = f"all ranks are done, and their worker group did not end within {_END_TIMEOUT_S:.0f} s"
        return Failure(status="hang", reason=reason)

    def _lose(self, lost: Lost, now: float) -> None:
        """A node that is gone is not asked: it would only keep us waiting."""
        self.lost[lost.rank] = lost
        ready = self.ready.get(lost.rank)
        remains = None
        if ready and not lost.is_of_node:
            remains = self._inquiry.remains(self.node_ids[lost.rank], ready)
        phase = self._progress.phase if self._progress else None
        self._troubles.lost(lost.rank, failure_of_loss(lost, ready, remains, phase), now)


def did_not_join(ranks: tuple[int, ...], limit_s: float) -> Failure:
    """Of a session's cells, as their rows have it."""
    reason = f"ranks {list(ranks)} did not join their process group within {limit_s:.0f} s"
    return Failure(status="crash", reason=reason, ranks=ranks)


def did_not_meet(ranks: tuple[int, ...], limit_s: float) -> Failure:
    """Of an attempt: the policy counts it as a hang."""
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return Failure(status="hang", reason=f"{who} did not meet the others within {limit_s:.0f} s", ranks=ranks)
