"""Follows a session's jobs on one worker group, one after another: posts in, events out. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from jobs.execution.board import Done, Measured, Post, Raised, Searching
from jobs.execution.messages import Event, Finished, Heartbeat, Started
from jobs.execution.monitor import GroupMonitor
from jobs.training.task.job import Job
from jobs.training.task.measurement import Failure, Measurement

# From the last result until the worker group is gone by itself.
END_TIMEOUT_S = 30.0


class SessionJobs:
    """The jobs of one session. After the first job that is not ok, ``is_condemned`` is set.

    Then the caller ends the worker group, and another group takes the jobs in ``left``. The first of them may
    be the same job: a search goes on there, knowing what ran out of memory. A job that fails while it is
    profiled keeps the numbers that it had before.
    """

    def __init__(self, jobs: Sequence[Job], monitor: GroupMonitor) -> None:
        self.left = tuple(jobs)
        self.is_condemned = False
        self._monitor = monitor
        self._done_s = 0.0
        self._measured: Measurement | None = None

    def hear(self, post: Post, now: float) -> list[Event]:
        if self.is_condemned or not self.left:
            return []
        match post:
            case Started():
                return [post]
            case Heartbeat():
                return self._note(post, now)
            case Measured():
                self._measured = post.measurement
            case Done():
                # The measurement is complete, but a rank in trouble will not follow to the next job.
                self.is_condemned = self._monitor.is_in_trouble
                return [self._finish(post.measurement, now)]
            case Searching():
                self._note_search(post)
            case Raised() if post.run_id != self.left[0].run_id:
                # Rank 0 reported that job as done, but this rank will not follow to the next one.
                self.is_condemned = True
            case _:
                self._monitor.hear(post, now)
        return []

    def judge(self, now: float) -> list[Event]:
        """The last event of the current job, if the job must end now."""
        if self.is_condemned:
            return []
        if not self.left:
            self.is_condemned = now - self._done_s > END_TIMEOUT_S
            return []
        failure = self._monitor.verdict(now)
        return self._condemn(failure, now) if failure else []

    def end(self, reason: str, now: float) -> list[Event]:
        """The worker group is gone, so the current job failed. ``reason`` is used if no better one is
        known.
        """
        if self.is_condemned or not self.left:
            return []
        return self._condemn(self._monitor.failure() or Failure(status="crash", reason=reason), now)

    def refuse(self, failure: Failure) -> list[Event]:
        """Ends all jobs with ``failure``: none of them was ever placed."""
        refused, self.left, self.is_condemned = self.left, (), True
        return [Finished(run_id=job.run_id, outcome=failure) for job in refused]

    def _note(self, beat: Heartbeat, now: float) -> list[Event]:
        if not self._monitor.is_met or beat.run_id != self.left[0].run_id:
            return []
        self._monitor.hear(beat, now)
        return [beat]

    def _finish(self, outcome: Measurement | Failure, now: float) -> Event:
        job, *others = self.left
        self.left, self._done_s, self._measured = tuple(others), now, None
        self._monitor.goes_on_to_next(now)
        return Finished(run_id=job.run_id, outcome=outcome)

    def _note_search(self, post: Searching) -> None:
        job, *others = self.left
        if post.run_id == job.run_id:
            self.left = (replace(job, search=post.search), *others)

    def _condemn(self, failure: Failure, now: float) -> list[Event]:
        self.is_condemned = True
        if self._measured is not None:
            return [self._finish(self._measured.unprofiled(failure), now)]
        job, *others = self.left
        search = job.search
        if search is not None and failure.status == "oom":
            search = search.ran_out()
            if search.goes_on:
                self.left = (replace(job, search=search), *others)
                return []
        ranks = self._monitor.held_against(failure) or tuple(range(len(self._monitor.node_ids)))
        failure = replace(failure, nodes=self._monitor.nodes(ranks), search=search)
        return [self._finish(failure, now)]
