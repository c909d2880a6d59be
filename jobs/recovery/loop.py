"""The loop over attempts: after each failure the policy decides what follows, until it gives up.

A driver works through its attempts in this loop, and a supervisor through its drivers. ``RecoveryLoop``
carries out the decisions for a driver: notes in the store, lines for people, a rollback, a pause.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar, assert_never

from checkpointing.errors import NothingToResume, taken_over
from checkpointing.generations.choice import find
from checkpointing.generations.retention import Retention, latest, of_this_life
from checkpointing.log.history import LogView
from checkpointing.stores.contract import StoreError
from jobs.execution.outcomes import (
    EXPECTED,
    Cancelled,
    Completed,
    Failed,
    GivenUp,
    Outcome,
    Setback,
    Unmendable,
    outcome_of,
)
from jobs.recovery.journal import Journal
from jobs.recovery.last_clean import last_clean
from jobs.recovery.policy import (
    FailedAttempt,
    GiveUp,
    Pair,
    Policy,
    Retry,
    RollBack,
    left_out,
    next_group,
    next_move,
)
from jobs.recovery.rollback import Rollback
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.run_progress.run_view import RunDisplay
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task
from reporting.recording.attempts import Incident
from reporting.results.redaction import without_credentials

End = TypeVar("End", covariant=True)


class Consequences(Protocol[End]):
    """Carries out the loop's decisions: for a driver's attempts, or for a supervisor's drivers."""

    @property
    def history(self) -> Sequence[FailedAttempt]:
        """The failed attempts, also those of earlier drivers; the newest last."""

    @property
    def mended(self) -> Mapping[Pair, float]:
        """When which nodes, that did not reach each other before, were seen to."""

    @property
    def groups(self) -> Sequence[str]:
        """The groups in which attempts may run, the preferred one first."""

    def failed(self, setback: Setback) -> End | None:
        """Adds the failure to ``history``. Returns an end if this failure decides nothing any more."""

    def give_up(self, setback: Setback, why: str) -> End: ...

    def go_on(self, setback: Setback, move: Retry | RollBack) -> End | None:
        """Returns None when it is time for the next attempt, or an end if the wait was ended early."""


def keep_trying(
    attempt: Callable[[tuple[str, ...]], End | Setback], then: Consequences[End], policy: Policy
) -> End:
    """Runs attempts until one ends with anything but a setback, or until ``then`` ends the loop.

    ``attempt`` gets the nodes to leave out.
    """
    without = left_out(then.history, then.mended)
    while True:
        outcome = attempt(without)
        if not isinstance(outcome, Setback):
            return outcome
        if (end := then.failed(outcome)) is not None:
            return end
        match next_move(then.history, policy, then.mended, then.groups):
            case GiveUp(reason=why):
                return then.give_up(outcome, why)
            case Retry() | RollBack() as move:
                if (end := then.go_on(outcome, move)) is not None:
                    return end
                without = move.without
            case never:
                assert_never(never)


RunEnd = Completed | Cancelled | Unmendable | GivenUp


@dataclass(slots=True, kw_only=True)
class RecoveryLoop:
    """The recovery of one driver's attempts. Call ``begin`` with each attempt's task.

    Without a ``policy`` a failed attempt is only noted: the program that started the processes decides.
    ``pause`` waits so many seconds, or until a stop request. ``task`` is the task of the attempt that runs or
    has just failed, if it got a task. ``newest`` is the newest task of all attempts.

    ``group`` is that of the next attempt, or of the one that runs. An attempt that fails says before it ends
    whether its group ``is_full``.
    """

    journal: Journal
    rollback: Rollback
    display: RunDisplay
    outbox: IncidentOutbox
    policy: Policy | None
    pause: Callable[[float], StopRequest | None]
    clock: Callable[[], float]
    task: Task | None = None
    newest: Task | None = None
    mended: Mapping[Pair, float] = field(default_factory=dict)
    groups: Sequence[str] = ()
    is_full: bool = False
    group: str = field(default="", init=False)
    _is_log_read: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.group = next_group(self.history, self.policy or Policy(), self.groups)

    @property
    def history(self) -> Sequence[FailedAttempt]:
        return self.journal.history

    def begin(self, task: Task) -> Task:
        """The task with what the run leaves out. Raises ``StoreError`` if a spoilt generation cannot be
        quarantined.
        """
        self.task = self.newest = self.journal.begins(task)
        self.rollback.quarantine_late(task.term)
        self.display.begins(task.term, task.group)
        return self.task

    def work(self, attempt: Callable[[tuple[str, ...]], Outcome]) -> RunEnd | Setback:
        """Runs attempts to the run's end. A run that is interrupted, also during a pause, has new budgets
        when started again.
        """
        try:
            end = self._work(partial(self._try, attempt))
        except KeyboardInterrupt:
            self.journal.note(self.newest, "interrupted")
            raise
        if isinstance(end, Completed | Cancelled):
            self.journal.note(self.newest, "done")
        return end

    def failed(self, setback: Setback) -> RunEnd | None:
        """Records the failure. If a later attempt has begun meanwhile, this failure decides nothing."""
        repository, view = self.journal.repository, self._view()
        if self.task is not None and view.term > self.task.term:
            return Unmendable(error=taken_over(repository.run, view.term, view.owner))
        ending = self._ending(setback, view)
        self.journal.history.append(ending)
        self._record_incident(self._incident(ending))
        return None

    def give_up(self, setback: Setback, why: str) -> RunEnd:
        ending = self.history[-1]
        self.journal.note(self.task, "given up", ending, setback.log_tail, why)
        self._record_incident(Incident(kind="give up", step=ending.step, text=why))
        self.display.ends("given up", f"{why}: {ending.reason}")
        return GivenUp(why=why, cause=ending.reason, log_tail=setback.log_tail)

    def go_on(self, setback: Setback, move: Retry | RollBack) -> RunEnd | None:
        ending = self.history[-1]
        if isinstance(move, RollBack) and isinstance(setback, Failed) and self.task is not None:
            self._step_back(move, setback, self.task)
        self.journal.note(self.task, "failed", ending, setback.log_tail)
        self._record_incident(Incident(kind="restart", step=ending.durable_step, seconds=move.after_s))
        self.display.note(self._going_on(ending, move))
        self.group = move.group or self.group
        self.display.waits(move.after_s, ending.reason)
        stop_request = self.pause(move.after_s)
        return Cancelled(stop_request=stop_request) if stop_request else None

    def _work(self, attempt: Callable[[tuple[str, ...]], RunEnd | Setback]) -> RunEnd | Setback:
        if self.policy is not None:
            return keep_trying(attempt, self, self.policy)
        outcome = attempt(left_out(self.history, self.mended))
        if not isinstance(outcome, Setback):
            return outcome
        if (end := self.failed(outcome)) is not None:
            return end
        self.journal.note(self.task, "failed", self.history[-1], outcome.log_tail)
        return outcome

    def _try(self, attempt: Callable[[tuple[str, ...]], Outcome], without: tuple[str, ...]) -> Outcome:
        self.task, self.is_full = None, False
        try:
            # Must happen before the next attempt chooses its generation.
            self._quarantine_spoilt()
        except EXPECTED as error:
            return outcome_of(error)
        try:
            return attempt(without)
        except KeyboardInterrupt:
            self._record_incident(Incident(kind="interruption"))
            raise

    def _step_back(self, move: RollBack, failed: Failed, task: Task) -> None:
        """Quarantines what must not be resumed from, and remembers the samples to leave out.

        If the store is away now, the quarantine happens before the next attempt.
        """
        bad = failed.failure.bad_loss
        good_step = self._good_step(move, failed.failure, task)
        self.journal.leaves_out(bad, term=task.term, good_step=good_step)
        self.rollback.is_due(task, failed.failure, move.num_generations)
        with suppress(StoreError):
            self._quarantine_spoilt()

    def _good_step(self, move: RollBack, failure: Failure, task: Task) -> int:
        """The step up to which what nodes' disks alone have stays good; -1: nothing of it does."""
        if failure.corruption is not None:
            with suppress(StoreError):
                return last_clean(self.journal.repository, task, failure)[1]
            return -1
        # Going back further leads to a generation in the store, as long as the store has one. So nothing
        # that this attempt left on nodes' disks alone stays good.
        goes_further = move.num_generations and latest(of_this_life(self.journal.repository.view)) is not None
        return -1 if failure.bad_loss is None or goes_further else failure.bad_loss.good_step

    def _quarantine_spoilt(self) -> None:
        self.rollback.quarantine_spoilt(self.newest.term if self.newest else 0)

    def _going_on(self, ending: FailedAttempt, move: Retry | RollBack) -> str:
        what = f"attempt {ending.term} {'ended' if ending.cause == 'preempted' else 'failed'}"
        what = what if self.task else "no attempt could begin"
        step = self._durable_step(self.journal.repository.view)
        where = f" from step {step}" if step else " from the beginning"
        where = where if self._is_log_read else ", once the store answers"
        without = f", without {', '.join(move.without)}" if move.without else ""
        in_group = f", in group {move.group}" if move.group not in ("", ending.group) else ""
        return f"{what}: {ending.reason}; trying again in {move.after_s:g} s{where}{in_group}{without}"

    def _ending(self, setback: Setback, view: LogView) -> FailedAttempt:
        heard, durable_step = self.display.last_step(), self._durable_step(view)
        reached = FailedAttempt(
            term=view.term,
            cause=setback.cause,
            reason=without_credentials(setback.reason).partition("\n")[0],
            ended_s=self.clock(),
            step=heard.step if heard else durable_step,
            durable_step=durable_step,
            group=self.group,
            is_full=self.is_full,
        )
        return _as_told(reached, setback) if isinstance(setback, Failed) else reached

    def _durable_step(self, view: LogView) -> int:
        newest = latest([one for one in of_this_life(view) if one.name not in self.rollback.names])
        task = self.newest
        if newest is None or task is None or task.resume == "latest" or newest.term >= task.term:
            return newest.step if newest else 0
        # The branch that the user asked for has saved nothing yet.
        with suppress(NothingToResume):
            return find(view, task.resume, task.saving.retention if task.saving else Retention()).step
        return 0

    def _incident(self, ending: FailedAttempt) -> Incident:
        """The incident to record: a preemption is nobody's fault, so it is an interruption and no failure."""
        heard = self.display.last_step()
        return Incident(
            kind="interruption" if ending.cause == "preempted" else "failure",
            step=ending.step,
            seconds=heard.ago_s if heard else None,
            text=ending.reason,
        )

    def _view(self) -> LogView:
        """The log as it is; while the store is away, as it was when it was read last."""
        self._is_log_read = False
        with suppress(StoreError):
            view = self.journal.repository.refresh()
            self._is_log_read = True
            return view
        return self.journal.repository.view

    def _record_incident(self, incident: Incident) -> None:
        if self.task is not None:
            self.outbox.leave(self.task.as_recorded(), incident, now_s=self.clock())


def _as_told(reached: FailedAttempt, failed: Failed) -> FailedAttempt:
    """The failed attempt with the step, ranks and nodes of the failure.

    A rank that had not loaded yet has done no step: its step is the one it was about to resume from.
    """
    failure = failed.failure
    return replace(
        reached,
        step=failure.step or reached.step,
        ranks=failure.ranks,
        nodes=failure.nodes,
        all_nodes=failed.nodes,
    )
