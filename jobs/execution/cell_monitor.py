"""One life of a worker group, as the driver follows it: posts in, events out, and when it must end. Pure.

What only effects can tell (the time, what is left of a dead worker) comes in as an argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from jobs.execution.board import Assembled, Done, Lost, Post, Raised, Ready
from jobs.execution.hang_detection import Progress
from jobs.execution.messages import Beat, Event, Finished, Limits, Started
from jobs.execution.rank_failures import Troubles, failure_of_loss
from jobs.training.health.postmortem import Remains
from jobs.training.task.job import Job
from jobs.training.task.measurement import Failure, Measurement

# From the workers' placement until all have met: processes, imports from a slow disk, a first collective.
START_TIMEOUT_S = 300.0
# From the last result until the worker group is gone by itself.
END_TIMEOUT_S = 30.0


class GroupLife:
    """``jobs`` on one worker group that is about to be asked for.

    After the first job that is not ok ``is_condemned``: the caller ends the worker group, and another one
    takes what is in ``left``.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        limits: Limits,
        now: float,
        examine: Callable[[int, Ready], Remains | None],
    ) -> None:
        self.left = tuple(jobs)
        self.is_condemned = False
        self._world_size = jobs[0].recipe.world_size
        self._limits = limits
        self._examine = examine
        self._since = now
        self._node_ids: tuple[str, ...] = ()
        self._ready: dict[int, Ready] = {}
        self._progress: Progress | None = None
        self._troubles = Troubles(self._world_size)

    def hear(self, post: Post, now: float) -> list[Event]:
        if self.is_condemned or not self.left:
            return []
        match post:
            case Assembled():
                self._node_ids, self._since = post.node_ids, now
            case Ready():
                self._ready[post.rank] = post
                if len(self._ready) == self._world_size:
                    self._progress = self._new_progress(now)
            case Started():
                return [post]
            case Beat():
                return self._note(post, now)
            case Done():
                # Its numbers are whole, but a rank in trouble will not follow to the next job.
                self.is_condemned = bool(self._troubles)
                return [self._finish(post.measurement, now)]
            case Raised() if post.run_id == self.left[0].run_id:
                self._troubles.raised(post.rank, post.failure, now)
            case Raised():
                # Its job is done, since rank 0 told so, but this rank will not follow to the next one.
                self.is_condemned = True
            case Lost():
                self._lose(post, now)
        return []

    def judge(self, now: float) -> list[Event]:
        """The last word on the current job, if its time has come."""
        if self.is_condemned:
            return []
        if not self.left:
            self.is_condemned = now - self._since > END_TIMEOUT_S
            return []
        failure = self._verdict(now)
        return [self._condemn(failure, now)] if failure else []

    def end(self, reason: str, now: float) -> list[Event]:
        """The worker group is gone: the current job, if any, failed, for ``reason`` if no better is known."""
        if self.is_condemned or not self.left:
            return []
        return [self._condemn(self._troubles.failure() or _crash(reason), now)]

    def refuse(self, failure: Failure) -> list[Event]:
        """None of the jobs was ever placed."""
        refused, self.left, self.is_condemned = self.left, (), True
        return [Finished(run_id=job.run_id, outcome=failure) for job in refused]

    def _note(self, beat: Beat, now: float) -> list[Event]:
        if self._progress is None or beat.run_id != self.left[0].run_id:
            return []
        self._progress.note(beat, now)
        return [beat]

    def _finish(self, outcome: Measurement | Failure, now: float) -> Event:
        job, *others = self.left
        self.left, self._since = tuple(others), now
        self._progress = self._new_progress(now)
        return Finished(run_id=job.run_id, outcome=outcome)

    def _condemn(self, failure: Failure, now: float) -> Event:
        self.is_condemned = True
        ranks = failure.ranks or range(len(self._node_ids))
        nodes = dict.fromkeys(self._node_ids[rank] for rank in ranks if rank < len(self._node_ids))
        return self._finish(replace(failure, nodes=tuple(nodes)), now)

    def _new_progress(self, now: float) -> Progress:
        return Progress(self._limits, self._world_size, now)

    def _verdict(self, now: float) -> Failure | None:
        if self._troubles:
            return self._troubles.failure() if self._troubles.is_all_told(now) else None
        if self._progress is not None:
            failure = self._progress.failure(now)
            return replace(failure, log_tail=self._log_tail(failure.ranks)) if failure else None
        return self._false_start(now)

    def _false_start(self, now: float) -> Failure | None:
        """Ray Train itself gives up what can't be placed in time; this is for what was, and never came."""
        limit_s = START_TIMEOUT_S + (0 if self._node_ids else self._limits.schedule_timeout_s)
        if now - self._since <= limit_s:
            return None
        missing = tuple(sorted(set(range(self._world_size)) - set(self._ready)))
        return _crash(
            f"ranks {list(missing)} did not join their process group within {limit_s:.0f} s", missing
        )

    def _lose(self, lost: Lost, now: float) -> None:
        if lost.rank in self._troubles:
            return
        ready = self._ready.get(lost.rank)
        remains = self._examine(lost.rank, ready) if ready else None
        phase = self._progress.phase if self._progress else None
        failure = failure_of_loss(lost, ready, remains, phase)
        self._troubles.lost(lost.rank, failure, now)

    def _log_tail(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """Of the first of ``ranks``, or of rank 0."""
        rank = ranks[0] if ranks else 0
        remains = self._examine(rank, self._ready[rank])
        return remains.log_tail if remains else ()


def _crash(reason: str, ranks: tuple[int, ...] = ()) -> Failure:
    return Failure(status="crash", reason=reason, ranks=ranks)
