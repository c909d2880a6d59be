"""A long run's attempts, one after another until one ends well, with all that listens to them and decides."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Resumed
from checkpointing.stores.contract import Unavailable
from cluster.environment import long_run_environment
from cluster.inventory import WorkerGroup
from jobs.alerts.notifier import Bell
from jobs.alerts.rules import Alarms
from jobs.checkpoints.text import surplus_lines
from jobs.execution.causes import Cause
from jobs.execution.executor import AttemptOrder, Executor
from jobs.execution.messages import Beat
from jobs.execution.outcomes import AttemptFailed, GivenUp
from jobs.recovery.loop import Restarts
from jobs.recovery.resizing import Resizing
from jobs.run_progress.incident_outbox import Words
from jobs.run_progress.run_view import RunDisplay
from jobs.runs.stop_signals import Wishers
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.events import Told
from jobs.training.task.stop_request import Wish, stronger
from jobs.training.task.task import Task
from reporting.recording.steady_clock import steady

_COLLECTIVE_TIMEOUT_S = 1800.0
# What ends an attempt so says nothing against the generation that it was loading,
_FROM_OUTSIDE: tuple[Cause, ...] = ("store", "cluster away", "host lost", "host silent")
# unless it does so again and again: one object of it may be what can't be read.
_MOST_FORGIVEN = 5
_LOOK_EVERY_S = 5.0


class Attempts:
    """``make_task`` gets the world size and the time of the lease; without ``may_retry`` once."""

    def __init__(
        self,
        executor: Executor,
        spec: RunSpec,
        group: WorkerGroup,
        repository: Repository,
        make_task: Callable[[int, float], Task],
        display: RunDisplay,
        wishers: Wishers,
        *,
        may_retry: bool,
    ) -> None:
        self._executor = executor
        self._spec = spec
        self._group = group
        self._repository = repository
        self._make_task = make_task
        self._display = display
        self._wishers = wishers
        # How the attempt with the newest lease did: what fails after it without one has loaded nothing.
        self._ended_by: Cause | None = None
        self._forgiven: Counter[str] = Counter()
        self._told_surplus: set[str] = set()
        recovery = spec.recovery
        self._keeps_spares = may_retry and recovery.spares and recovery.max_attempts != 1
        self._clock = steady()
        self._words = Words(repository.store)
        alarms = Alarms(spec.alarms, spec.wanted())
        self._bell = Bell(
            alarms,
            spec.alarms.ringing(),
            self._words,
            display.note,
            run=repository.run,
            store=repository.store.url,
            newest_term=repository.view.term,
        )
        policy = recovery if may_retry else replace(recovery, max_attempts=1)
        # Peers that share an attempt but don't speak don't judge it.
        self._restarts = Restarts(
            repository,
            policy if executor.can_retry else None,
            display,
            pause=self._pause,
            clock=self._clock,
            words=self._words,
        )
        self._resizing = Resizing(
            executor.sizes(spec.sizes, group),
            spec.elastic,
            partial(executor.room, group),
            display.note,
            pause=self._pause,
        )

    def work(self) -> str | None:
        """What Ray's own result of the last attempt points at."""
        with self._words, self._bell:
            try:
                return self._restarts.work(self._attempt)
            except GivenUp as error:
                self._bell.given_up(f"{error.why}: {error.cause}")
                raise

    def _attempt(self, without: tuple[str, ...]) -> str | None:
        size = self._resizing.next_size(without)
        try:
            return self._executor.attempt(self._order(size, without), partial(self._begin, size), self._hear)
        except AttemptFailed as error:
            self._ended_by = self._ended_by or error.cause
            # Theirs may be what was missing.
            self._keeps_spares &= error.cause != "out of memory"
            if error.cause == "no room":
                self._resizing.had_no_place()
            self._bell.failed(error.cause, error.reason)
            raise
        except Unavailable as error:
            self._ended_by = self._ended_by or "store"
            self._bell.failed("store", str(error))
            raise

    def _order(self, size: int, without: tuple[str, ...]) -> AttemptOrder:
        limits = self._spec.limits
        return AttemptOrder(
            group=self._group,
            without=without,
            may_wait=self._repository.view.term > 0,
            world_size=size,
            environment=long_run_environment(self._group, self._spec.environment),
            schedule_timeout_s=self._resizing.schedule_timeout_s(limits.schedule_timeout_s),
            # A rank may wait for memory at the border while the others are in the next step.
            collective_timeout_s=_COLLECTIVE_TIMEOUT_S + self._spec.checkpoint.deadline_s,
            hang_timeout_s=limits.hang_timeout_s,
            keeps_spares=self._keeps_spares,
            wish=self._wish,
        )

    def _begin(self, world_size: int) -> Task:
        task = self._restarts.begin(self._make_task(world_size, self._clock()))
        if self._ended_by in _FROM_OUTSIDE:
            self._forgive(task.term)
        self._ended_by = None
        self._tell_surplus()
        self._bell.begins(task)
        self._wishers.began(task.term)
        return task

    def _tell_surplus(self) -> None:
        """Once each, however many attempts find it."""
        for line in surplus_lines(self._repository):
            if line not in self._told_surplus:
                self._told_surplus.add(line)
                self._display.note(line)

    def _forgive(self, term: int) -> None:
        """Takes back what the attempt before has loaded, so that it is no step towards being poison."""
        for name in tuple(self._repository.view.loads):
            self._forgiven[name] += 1
            if self._forgiven[name] <= _MOST_FORGIVEN:
                self._repository.append(Resumed(name=name), term=term)

    def _hear(self, told: Told | Beat) -> None:
        self._bell.hear(told)
        if not isinstance(told, Beat):
            self._resizing.hear(told)
            self._display.hear(told)

    def _pause(self, for_s: float) -> None:
        end_s = time.monotonic() + for_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._bell.look()
            self._wishers.pause(min(left_s, _LOOK_EVERY_S))

    def _wish(self) -> Wish | None:
        # It is asked all the time, also while there is no room.
        self._bell.look()
        return stronger(self._wishers.wish(), self._resizing.wish())
