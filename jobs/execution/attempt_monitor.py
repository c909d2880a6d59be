"""One attempt's worker group, as its driver follows it: posts in, and why it must end. Pure.

What only effects can tell (the time, what is left of a dead worker) comes in as an argument.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from jobs.execution.board import Assembled, Departed, Lost, Post, Raised, Ready
from jobs.execution.cell_monitor import START_TIMEOUT_S
from jobs.execution.hang_detection import Progress
from jobs.execution.messages import Beat, Limits
from jobs.execution.rank_failures import Troubles, failure_of_loss
from jobs.training.health.postmortem import Remains
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task

# What takes its time without a step, as the run's ledger calls it. Compiling is the first step's, which gets
# ten times the usual patience. Data in a store that is away is waited for by who reads it, longer than that
# store's own patience (``checkpointing.stores.retrying``) and a call that stands still together.
_PATIENCE_S: Mapping[str, float] = {
    "start": 900.0,
    "restore": 1800.0,
    "eval": 1800.0,
    "data wait": 900.0,
    "stall": 300.0,
}
# After the last save the log is told, for as long as a store that is away is tried again.
_LAST_WORD_S = 300.0
# From the last rank's last word until the worker group is gone by itself.
_END_TIMEOUT_S = 300.0


def limits_of(task: Task, *, schedule_timeout_s: float, hang_timeout_s: float) -> Limits:
    save_s = task.saving.ending_s if task.saving else 0.0
    return Limits(
        schedule_timeout_s=schedule_timeout_s,
        cell_timeout_s=inf,
        hang_timeout_s=hang_timeout_s,
        patience_s={**_PATIENCE_S, "save": save_s + _LAST_WORD_S},
    )


class AttemptLife:
    """``examine`` looks at what a rank left on its node."""

    def __init__(
        self, world_size: int, limits: Limits, now: float, examine: Callable[[Lost, Ready], Remains | None]
    ) -> None:
        self.node_ids: tuple[str, ...] = ()
        self.ready: dict[int, Ready] = {}
        self.lost: dict[int, Lost] = {}
        self._world_size = world_size
        self._limits = limits
        self._examine = examine
        self._since = now
        self._steps: dict[int, int] = {}
        self._departed: dict[int, float] = {}
        self._step_s = 0.0
        self._progress: Progress | None = None
        self._troubles = Troubles(world_size)

    @property
    def is_met(self) -> bool:
        """Whether all ranks have met."""
        return len(self.ready) == self._world_size

    def left_s(self, num_steps: int) -> float:
        """What the rest of the steps takes if each takes as long as the last one; before that, for ever."""
        return (num_steps - max(self._steps.values())) * self._step_s if self._step_s else inf

    def hear(self, post: Post, now: float) -> None:
        match post:
            case Assembled():
                self.node_ids, self._since = post.node_ids, now
            case Ready():
                self.ready[post.rank] = post
                if self.is_met:
                    self._progress = Progress(self._limits, self._world_size, now)
            case Beat():
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
        return self._progress.failure(now) or self._no_end(now)

    def failure(self) -> Failure | None:
        """What the ranks have told so far, if anything went wrong, and how far the one it is about was."""
        told = self._troubles.failure()
        return self.with_step(told) if told else None

    def with_step(self, failure: Failure) -> Failure:
        steps = [self._steps[rank] for rank in failure.ranks if rank in self._steps]
        return failure if failure.step is not None or not steps else replace(failure, step=min(steps))

    def _false_start(self, now: float) -> Failure | None:
        """Ray Train itself gives up what can't be placed in time; this is for what was, and never met."""
        limit_s = START_TIMEOUT_S + (0 if self.node_ids else self._limits.schedule_timeout_s)
        if now - self._since <= limit_s:
            return None
        missing = tuple(sorted(set(range(self._world_size)) - set(self.ready)))
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        reason = f"{who} did not meet the others within {limit_s:.0f} s"
        return Failure(status="hang", reason=reason, ranks=missing)

    def _no_end(self, now: float) -> Failure | None:
        """All ranks have done all they had to; what holds them is Ray's."""
        is_over = len(self._departed) == self._world_size
        if not is_over or now - max(self._departed.values()) <= _END_TIMEOUT_S:
            return None
        reason = f"all ranks are done, and their worker group did not end within {_END_TIMEOUT_S:.0f} s"
        return Failure(status="hang", reason=reason)

    def _lose(self, lost: Lost, now: float) -> None:
        self.lost[lost.rank] = lost
        ready = self.ready.get(lost.rank)
        remains = self._examine(lost, ready) if ready else None
        phase = self._progress.phase if self._progress else None
        self._troubles.lost(lost.rank, failure_of_loss(lost, ready, remains, phase), now)
