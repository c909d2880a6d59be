"""The one loop over attempts: a failure is followed by what the policy decides, until it makes no sense.

A run's driver works through its attempts in it, and a supervisor through its drivers. What a decision means
to a driver is ``RecoveryLoop``'s: notes in the store, lines for people, a step back, a pause.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from jobs.recovery.policy import FailedAttempt, GiveUp, Policy, Retry, RollBack, left_out, next_move
from jobs.recovery.rollback import Rollback
from jobs.run_progress.incident_outbox import IncidentOutbox
from jobs.run_progress.run_view import RunDisplay
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task
from reporting.recording.attempts import Incident
from reporting.results.redaction import without_credentials

End = TypeVar("End", covariant=True)


class Consequences(Protocol[End]):
    """What a decision means to those whose attempts the loop follows."""

    @property
    def history(self) -> Sequence[FailedAttempt]:
        """The failed attempts, also those of earlier drivers; the newest last."""

    def failed(self, setback: Setback) -> End | None:
        """Takes it into the history. An end, where this attempt's failure decides nothing any more."""

    def give_up(self, setback: Setback, why: str) -> End: ...

    def go_on(self, setback: Setback, move: Retry | RollBack) -> End | None:
        """Returns when it is time for the next attempt. An end, where somebody ended the waiting."""


def keep_trying(
    attempt: Callable[[tuple[str, ...]], End | Setback], then: Consequences[End], policy: Policy
) -> End:
    """``attempt`` gets the nodes to leave out. What is no setback is the end."""
    without = left_out(then.history)
    while True:
        outcome = attempt(without)
        if not isinstance(outcome, Setback):
            return outcome
        if (end := then.failed(outcome)) is not None:
            return end
        match next_move(then.history, policy):
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
    """One driver's. ``begin`` is to be called with each attempt's task.

    Without a ``policy`` an attempt that fails is noted, and that is all: somebody else decides. ``pause``
    waits so many seconds, or until somebody wishes the run to stop. ``task`` is that of the attempt that
    goes on or has just failed, if it got so far, ``newest`` that of the newest that did.
    """

    journal: Journal
    rollback: Rollback
    display: RunDisplay
    words: IncidentOutbox
    policy: Policy | None
    pause: Callable[[float], StopRequest | None]
    clock: Callable[[], float]
    task: Task | None = None
    newest: Task | None = None

    @property
    def history(self) -> Sequence[FailedAttempt]:
        return self.journal.history

    def begin(self, task: Task) -> Task:
        """The task as the run's past wants it. ``StoreError`` if what is spoilt can't be told."""
        self.task = self.newest = self.journal.begins(task)
        self.rollback.quarantine_late(task.term)
        self.display.begins(task.term)
        return self.task

    def work(self, attempt: Callable[[tuple[str, ...]], Outcome]) -> RunEnd | Setback:
        """Who ends it, also while it waits, and begins it again then has new budgets."""
        try:
            end = self._work(partial(self._try, attempt))
        except KeyboardInterrupt:
            self.journal.note(self.newest, "interrupted")
            raise
        if isinstance(end, Completed | Cancelled):
            self.journal.note(self.newest, "done")
        return end

    def failed(self, setback: Setback) -> RunEnd | None:
        """A later attempt may have begun meanwhile: then this one's failure decides nothing."""
        repository, view = self.journal.repository, self._view()
        if self.task is not None and view.term > self.task.term:
            return Unmendable(error=taken_over(repository.run, view.term, view.owner))
        ending = self._ending(setback, view)
        self.journal.history.append(ending)
        self._leave_word(self._incident(ending))
        return None

    def give_up(self, setback: Setback, why: str) -> RunEnd:
        ending = self.history[-1]
        self.journal.note(self.task, "given up", ending, setback.log_tail, why)
        self._leave_word(Incident(kind="give up", step=ending.step, text=why))
        self.display.ends("given up", f"{why}: {ending.reason}")
        return GivenUp(why=why, cause=ending.reason, log_tail=setback.log_tail)

    def go_on(self, setback: Setback, move: Retry | RollBack) -> RunEnd | None:
        ending = self.history[-1]
        if isinstance(move, RollBack) and isinstance(setback, Failed) and self.task is not None:
            self._step_back(move, setback, self.task)
        self.journal.note(self.task, "failed", ending, setback.log_tail)
        self._leave_word(Incident(kind="restart", step=ending.durable_step, seconds=move.after_s))
        self.display.note(self._going_on(ending, move))
        self.display.waits(move.after_s, ending.reason)
        wish = self.pause(move.after_s)
        return Cancelled(wish=wish) if wish else None

    def _work(self, attempt: Callable[[tuple[str, ...]], RunEnd | Setback]) -> RunEnd | Setback:
        if self.policy is not None:
            return keep_trying(attempt, self, self.policy)
        outcome = attempt(left_out(self.history))
        if not isinstance(outcome, Setback):
            return outcome
        if (end := self.failed(outcome)) is not None:
            return end
        self.journal.note(self.task, "failed", self.history[-1], outcome.log_tail)
        return outcome

    def _try(self, attempt: Callable[[tuple[str, ...]], Outcome], without: tuple[str, ...]) -> Outcome:
        self.task = None
        try:
            # Before it is decided what to go on from.
            self._quarantine_spoilt()
        except EXPECTED as error:
            return outcome_of(error)
        try:
            return attempt(without)
        except KeyboardInterrupt:
            self._leave_word(Incident(kind="interruption"))
            raise

    def _step_back(self, move: RollBack, failed: Failed, task: Task) -> None:
        """Quarantines what must not be gone on from, before the next attempt if the store is away now, and
        remembers the samples to leave out.
        """
        bad = failed.failure.bad_loss
        # To go back further is to what the store has, as long as it has something.
        goes_further = move.num_generations and latest(of_this_life(self.journal.repository.view)) is not None
        good_step = -1 if bad is None or goes_further else bad.good_step
        self.journal.leaves_out(bad.samples if bad else None, term=task.term, good_step=good_step)
        self.rollback.is_due(task, failed.failure, move.num_generations)
        with suppress(StoreError):
            self._quarantine_spoilt()

    def _quarantine_spoilt(self) -> None:
        self.rollback.quarantine_spoilt(self.newest.term if self.newest else 0)

    def _going_on(self, ending: FailedAttempt, move: Retry | RollBack) -> str:
        what = f"attempt {ending.term} {'ended' if ending.cause == 'preempted' else 'failed'}"
        what = what if self.task else "no attempt could begin"
        step = self._durable_step(self.journal.repository.view)
        where = f"from step {step}" if step else "from the beginning"
        without = f", without {', '.join(move.without)}" if move.without else ""
        return f"{what}: {ending.reason}; trying again in {move.after_s:g} s {where}{without}"

    def _ending(self, setback: Setback, view: LogView) -> FailedAttempt:
        heard, durable_step = self.display.last_step(), self._durable_step(view)
        reached = FailedAttempt(
            term=view.term,
            cause=setback.cause,
            reason=without_credentials(setback.reason).partition("\n")[0],
            ended_s=self.clock(),
            step=heard.step if heard else durable_step,
            durable_step=durable_step,
        )
        return _as_told(reached, setback) if isinstance(setback, Failed) else reached

    def _durable_step(self, view: LogView) -> int:
        newest = latest([one for one in of_this_life(view) if one.name not in self.rollback.names])
        task = self.newest
        if newest is None or task is None or task.resume == "latest" or newest.term >= task.term:
            return newest.step if newest else 0
        # Nothing is saved yet of the branch that was asked for.
        with suppress(NothingToResume):
            return find(view, task.resume, task.saving.retention if task.saving else Retention()).step
        return 0

    def _incident(self, ending: FailedAttempt) -> Incident:
        """Of what nobody is to blame for it is an interruption."""
        heard = self.display.last_step()
        return Incident(
            kind="interruption" if ending.cause == "preempted" else "failure",
            step=ending.step,
            seconds=heard.ago_s if heard else None,
            text=ending.reason,
        )

    def _view(self) -> LogView:
        with suppress(StoreError):
            return self.journal.repository.refresh()
        return self.journal.repository.view

    def _leave_word(self, incident: Incident) -> None:
        if self.task is not None:
            self.words.leave(self.task.described(), incident, now_s=self.clock())


def _as_told(reached: FailedAttempt, failed: Failed) -> FailedAttempt:
    """A rank that had not loaded yet has done no step: what it was about to go on from is where it stood."""
    failure = failed.failure
    return replace(
        reached,
        step=failure.step or reached.step,
        ranks=failure.ranks,
        nodes=failure.nodes,
        all_nodes=failed.nodes,
    )
