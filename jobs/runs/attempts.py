"""The attempts of a long run: what each attempt asks for, and what hears its reports.

``jobs.recovery.loop`` decides what follows a failed attempt.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Resumed
from cluster.environment import long_run_environment
from cluster.inventory import ClusterError, WorkerGroup
from jobs.alerts.link_looks import LinkLooks
from jobs.alerts.notifier import Notifier
from jobs.alerts.rules import Alarms
from jobs.checkpoints.text import surplus_lines
from jobs.execution.causes import Cause
from jobs.execution.executor import AttemptOrder, Executor
from jobs.execution.messages import Heartbeat
from jobs.execution.outcomes import (
    EXPECTED,
    Cancelled,
    GivenUp,
    Outcome,
    Setback,
    StoreAway,
    Unmendable,
    outcome_of,
)
from jobs.gauges.run_gauges import RunGauges
from jobs.recovery.journal import open_journal
from jobs.recovery.loop import RecoveryLoop, RunEnd
from jobs.recovery.parted_nodes import PartedNodes
from jobs.recovery.policy import Pair, Policy
from jobs.recovery.resizing import Resizing
from jobs.recovery.rollback import Rollback
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.run_progress.run_view import RunDisplay
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.events import RunEvent
from jobs.training.task.stop_request import StopRequest, stronger
from jobs.training.task.task import Task
from reporting.recording.steady_clock import steady

_COLLECTIVE_TIMEOUT_S = 1800.0
# An attempt that ended for one of these causes does not count against the generation that it was loading.
_FROM_OUTSIDE: tuple[Cause, ...] = (
    "store", "cluster away", "host lost", "host silent", "partition", "hand-over",
)  # fmt: skip
# Forgiven at most so often per generation: the cause may be one of its objects that can never be read.
_MOST_FORGIVEN = 5
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One start of a run, and the parts that it works with.

    ``groups`` are those in which attempts may run, the preferred one first. ``make_task`` takes one of them,
    the world size and the time of the lease. Without ``may_retry`` the first failed attempt is the last,
    unless it was preempted.
    """

    executor: Executor
    spec: RunSpec
    groups: Sequence[WorkerGroup]
    repository: Repository
    make_task: Callable[[WorkerGroup, int, float], Task]
    display: RunDisplay
    gauges: RunGauges
    stop_signals: StopSignals
    may_retry: bool

    def policy(self) -> Policy | None:
        """The policy, or None if this process must not retry: ranks that share an attempt cannot judge it
        alone.
        """
        policy: Policy = self.spec.recovery
        if not self.executor.can_retry:
            return None
        return policy if self.may_retry else replace(policy, max_attempts=1)

    def group(self, name: str) -> WorkerGroup:
        return next(group for group in self.groups if group.name == name)

    def keeps_spares(self, group: WorkerGroup) -> bool:
        return self.may_retry and self.spec.recovery.keeps_spares(group)


def work(driver: Driver) -> RunEnd | Setback:
    """Runs one attempt after another, until one ends well or another one would make no sense."""
    clock, outbox = steady(), IncidentOutbox(driver.repository.store)
    notifier = _notifier(driver, outbox)
    mended = dict[Pair, float]()
    attempts: _Attempts
    parted = PartedNodes(
        mended=mended,
        history=lambda: recovery.history,
        unreached=lambda nodes: driver.executor.unreached(attempts.group, nodes),
        say=driver.display.note,
        clock=clock,
    )
    recovery = RecoveryLoop(
        journal=open_journal(driver.repository),
        rollback=Rollback(repository=driver.repository),
        display=driver.display,
        outbox=outbox,
        policy=driver.policy(),
        pause=lambda for_s: _pause(
            driver.stop_signals, [notifier.look, attempts.resizing.look_between], for_s
        ),
        clock=clock,
        mended=mended,
        groups=[group.name for group in driver.groups],
    )
    attempts = _Attempts(
        driver=driver,
        recovery=recovery,
        parted=parted,
        notifier=notifier,
        links=LinkLooks(
            driver.spec.alarms.slow_link,
            lambda nodes, is_wanted: driver.executor.way_rates(attempts.group, nodes, is_wanted),
            notifier.hear,
        ),
        clock=clock,
    )
    with outbox, notifier, attempts.links:
        end = recovery.work(attempts.attempt)
        if isinstance(end, GivenUp):
            notifier.given_up(f"{end.why}: {end.cause}")
    return end


def _notifier(driver: Driver, outbox: IncidentOutbox) -> Notifier:
    alarms = driver.spec.alarms
    return Notifier(
        Alarms(alarms, driver.spec.wanted()),
        alarms.ringing(),
        outbox,
        driver.display.note,
        run=driver.repository.run,
        store=driver.repository.store.url,
        newest_term=driver.repository.view.term,
    )


def _pause(
    stop_signals: StopSignals, looks: Sequence[Callable[[], object]], for_s: float
) -> StopRequest | None:
    """Waits ``for_s`` seconds, or returns early with a stop request. Calls ``looks`` now and then."""
    end_s = time.monotonic() + for_s
    while (left_s := end_s - time.monotonic()) > 0:
        for look in looks:
            look()
        if stop_request := stop_signals.pause(min(left_s, _LOOK_EVERY_S)):
            return stop_request
    return None


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """The attempts of one driver.

    ``ended_by`` is why the attempt with the newest lease failed. A later failure without a lease has loaded
    nothing, so it changes nothing here. ``forgiven`` counts by generation.
    """

    driver: Driver
    recovery: RecoveryLoop
    parted: PartedNodes
    notifier: Notifier
    links: LinkLooks
    clock: Callable[[], float]
    group: WorkerGroup = field(init=False)
    resizing: Resizing = field(init=False)
    has_memory_for_spares: bool = True
    ended_by: Cause | None = None
    forgiven: Counter[str] = field(default_factory=Counter)
    reported_surplus: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._enter(self.driver.group(self.recovery.group))

    def attempt(self, without: tuple[str, ...]) -> Outcome:
        if self.recovery.group != self.group.name:
            self._enter(self.driver.group(self.recovery.group))
        outcome = self._attempt(without)
        return outcome if self.driver.repository.view.term else self._first_with_room(without, outcome)

    def _is_full(self, setback: Setback) -> bool:
        """Whether the group of the attempt that has just failed has no room for the run's smallest size. That
        it is only in use is not known before an attempt has waited for room.
        """
        if setback.cause != "preempted" or len(self.driver.groups) == 1:
            return setback.cause == "no room" and self.resizing.is_at_smallest
        num_there = self.driver.executor.num_there(self.group)
        return num_there is not None and num_there < self.resizing.smallest

    def _enter(self, group: WorkerGroup) -> None:
        driver = self.driver
        self.group = group
        self.resizing = Resizing(
            driver.executor.sizes(driver.spec.sizes, group),
            driver.spec.elastic,
            lambda without: driver.executor.room(group, self.parted.still(without)),
            driver.display.note,
            pause=partial(_pause, driver.stop_signals, [self.notifier.look]),
        )
        driver.gauges.moves_to(group.device)

    def _first_with_room(self, without: tuple[str, ...], outcome: Outcome) -> Outcome:
        """The outcome in the first group with room, of a run that never ran: it waits for room nowhere."""
        refusals = list[str]()
        for group in (*self.driver.groups[1:], None):
            if not (isinstance(outcome, Unmendable) and isinstance(outcome.error, ClusterError)):
                break
            refusals.append(str(outcome.error))
            if group is None:
                return Unmendable(error=ClusterError("; ".join(refusals)))
            self.driver.display.note(f"{outcome.error}; tries group {group.name}")
            self.recovery.group = group.name
            self._enter(group)
            outcome = self._attempt(without)
        return outcome

    def _attempt(self, without: tuple[str, ...]) -> Outcome:
        without = self.parted.still(without)
        size = self.resizing.next_size(without)
        if isinstance(size, StopRequest):
            return Cancelled(stop_request=size)
        order = self._order(size, without)
        outcome = self.driver.executor.attempt(order, partial(self._begin, size), self._handle)
        if isinstance(outcome, Setback):
            self._failed(outcome)
        return outcome

    def _order(self, size: int, without: tuple[str, ...]) -> AttemptOrder:
        spec, group = self.driver.spec, self.group
        return AttemptOrder(
            group=group,
            without=without,
            may_wait=self.driver.repository.view.term > 0,
            world_size=size,
            environment=long_run_environment(group, spec.environment, deterministic=spec.deterministic),
            schedule_timeout_s=self.resizing.schedule_timeout_s(spec.limits.schedule_timeout_s),
            # A rank may wait for memory at the step boundary while the others are in the next step.
            collective_timeout_s=_COLLECTIVE_TIMEOUT_S + spec.checkpoint.deadline_s,
            hang_timeout_s=spec.limits.hang_timeout_s,
            keeps_spares=self.has_memory_for_spares and self.driver.keeps_spares(group),
            strategy=spec.strategy,
            stop_request=self._stop_request,
        )

    def _begin(self, world_size: int) -> Task | StoreAway | Unmendable:
        try:
            task = self.recovery.begin(self.driver.make_task(self.group, world_size, self.clock()))
            if self.ended_by in _FROM_OUTSIDE:
                self._forgive(task.term)
        except EXPECTED as error:
            return outcome_of(error)
        self.ended_by = None
        self._report_surplus()
        self.notifier.begins(task)
        self.links.begins(world_size)
        self.driver.gauges.begins(task.recipe, time.monotonic())
        self.driver.stop_signals.began(task.term)
        return task

    def _report_surplus(self) -> None:
        """Prints each line once per driver, however many attempts find it."""
        for line in surplus_lines(self.driver.repository):
            if line not in self.reported_surplus:
                self.reported_surplus.add(line)
                self.driver.display.note(line)

    def _forgive(self, term: int) -> None:
        """Resets the load counts of the generations that the last attempt loaded, so that they do not become
        poison.
        """
        repository = self.driver.repository
        for name in tuple(repository.view.loads):
            self.forgiven[name] += 1
            if self.forgiven[name] <= _MOST_FORGIVEN:
                repository.append(Resumed(name=name), term=term)

    def _failed(self, setback: Setback) -> None:
        self.ended_by = self.ended_by or setback.cause
        # The spare processes may hold the memory that was missing.
        self.has_memory_for_spares &= setback.cause != "out of memory"
        if setback.cause == "no room":
            self.resizing.had_no_place()
        self.recovery.is_full = self._is_full(setback)
        self.notifier.failed(setback.cause, setback.reason)
        self.driver.gauges.failed(setback.cause, time.monotonic())

    def _handle(self, message: RunEvent | Heartbeat) -> None:
        self.notifier.hear(message)
        if isinstance(message, Heartbeat):
            self.links.hear(message)
            self.driver.gauges.hear(message, time.monotonic())
        else:
            self.resizing.hear(message)
            self.driver.display.hear(message)

    def _stop_request(self) -> StopRequest | None:
        # The executor calls this all the time, also while an attempt waits for room, so alarms are judged
        # here.
        self.notifier.look()
        return stronger(self.driver.stop_signals.stop_request(), self.resizing.stop_request())
