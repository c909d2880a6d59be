"""A run's attempts one after another, until one ends well or it makes no sense to go on.

What is decided, and why, is ``recovery``'s; here it is carried out: noted in the store, said, waited for.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from checkpointing.errors import NothingToResume, taken_over
from checkpointing.generations.choice import find
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention, latest, of_this_life
from checkpointing.log.history import View
from checkpointing.stores.contract import StoreError, Unavailable
from checkpointing.stores.transfers import within
from jobs.execution.outcomes import AttemptFailed, GivenUp, StopWished
from jobs.recovery.journal import How, Note, leave_note, read_newest, read_past
from jobs.recovery.policy import Ending, GiveUp, Policy, Retry, StepBack, left_out, next_move
from jobs.recovery.rollback import late, spoilt
from jobs.run_progress.incident_outbox import Words
from jobs.run_progress.run_view import RunDisplay
from jobs.training.task.measurement import Failure
from jobs.training.task.skipping import joined
from jobs.training.task.task import Task
from reporting.recording.attempts import Incident
from reporting.results.redaction import without_credentials

Found = TypeVar("Found")
# A store that is away may hold up whoever writes to it for many minutes.
_WORD_TIMEOUT_S = 15.0


class Restarts:
    """``begin`` is to be called with each attempt's task. ``pause`` waits so many seconds.

    Without a policy an attempt that fails is noted and raised: somebody else decides.
    """

    def __init__(
        self,
        repository: Repository,
        policy: Policy | None,
        display: RunDisplay,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        word_timeout_s: float = _WORD_TIMEOUT_S,
        words: Words | None = None,
    ) -> None:
        self._repository = repository
        self._policy = policy
        self._display = display
        self._pause = pause
        self._clock = clock
        self._word_timeout_s = word_timeout_s
        self._words = words or Words(repository.store, timeout_s=word_timeout_s)
        view = repository.refresh()
        self._life = view.life
        self._branch_term = 0
        self._past = read_past(repository.store, repository.run, view)
        newest = read_newest(repository.store, repository.run, view)
        self._skips = newest.skips if newest else ()
        self._spoilt_on_disk = newest.spoilt if newest else ()
        # Of the attempt that goes on or has just failed, if there is one; of the newest that began.
        self._task: Task | None = None
        self._newest: Task | None = None
        # Generations that nothing may go on from, by name, and why: the store was not there to be told, or
        # even to be asked for them.
        self._spoilt: dict[str, str] = {}
        self._wrong: tuple[Task, Failure, int] | None = None
        self._find_late: Callable[[View], dict[str, str]] | None = None

    def begin(self, task: Task) -> Task:
        """The task as the run's past wants it; one that begins afresh has none."""
        if self._repository.view.life != self._life:
            self._life, self._past = self._repository.view.life, []
            self._skips, self._spoilt_on_disk = (), ()
        elif self._newest is None and task.resume != "latest" and self._past:
            # What was asked for by hand is a branch of its own, also to a driver that comes later.
            self._past, self._branch_term = [], task.term
            self._note(task, "failed")
        self._task = self._newest = replace(task, skips=self._skips, spoilt=self._spoilt_on_disk)
        self._quarantine_late(task.term)
        self._display.begins(task.term)
        return self._task

    def work(self, attempt: Callable[[tuple[str, ...]], Found]) -> Found:
        """``attempt`` gets the nodes to leave out. Raises ``GivenUp``, and what another try can't mend.

        A wish or an interruption ends it as well while it waits for the next attempt: who begins it again
        then has new budgets.
        """
        try:
            found = self._work(attempt)
        except StopWished:
            self._note(self._newest, "done")
            raise
        except KeyboardInterrupt:
            self._note(self._newest, "interrupted")
            raise
        self._note(self._newest, "done")
        return found

    def _work(self, attempt: Callable[[tuple[str, ...]], Found]) -> Found:
        without = left_out(self._past)
        while True:
            self._task = None
            try:
                # Before it is decided what to go on from.
                self._quarantine_spoilt()
                return attempt(without)
            except (AttemptFailed, Unavailable) as error:
                without = self._go_on_after(error)
            except KeyboardInterrupt:
                self._leave_word(Incident(kind="interruption"))
                raise

    def _go_on_after(self, error: AttemptFailed | Unavailable) -> tuple[str, ...]:
        """Returns when it is time for the next attempt, with the nodes to leave out."""
        ending = self._ending(error)
        self._past.append(ending)
        self._leave_word(self._failure(ending))
        log_tail = error.log_tail if isinstance(error, AttemptFailed) else ()
        if self._policy is None:
            self._note(self._task, "failed", ending, log_tail)
            raise error
        move = next_move(self._past, self._policy)
        if isinstance(move, StepBack) and isinstance(error, AttemptFailed) and self._task is not None:
            self._step_back(move, error, self._task)
        match move:
            case GiveUp(reason=reason):
                self._note(self._task, "given up", ending, log_tail, reason)
                self._leave_word(Incident(kind="give up", step=ending.step, text=reason))
                self._display.ends("given up", f"{reason}: {ending.reason}")
                raise GivenUp(reason, ending.reason, log_tail) from error
            case Retry() | StepBack():
                self._note(self._task, "failed", ending, log_tail)
                self._leave_word(Incident(kind="restart", step=ending.durable_step, seconds=move.after_s))
                self._display.note(self._going_on(ending, move))
                self._display.waits(move.after_s, ending.reason)
                self._pause(move.after_s)
                return move.without

    def _step_back(self, move: StepBack, error: AttemptFailed, task: Task) -> None:
        """Quarantines what must not be gone on from, before the next attempt if the store is away now, and
        remembers the samples to leave out.
        """
        bad = error.failure.bad_loss
        if bad is not None:
            self._skips = joined([*self._skips, bad.samples])
        self._wrong = (task, error.failure, move.num_generations)
        # To go back further is to what the store has, as long as it has something.
        goes_further = move.num_generations and latest(of_this_life(self._repository.view)) is not None
        good_step = -1 if bad is None or goes_further else bad.good_step
        self._spoilt_on_disk = (*self._spoilt_on_disk, (task.term, good_step))
        with suppress(StoreError):
            self._quarantine_spoilt()

    def _quarantine_spoilt(self) -> None:
        if self._wrong is not None:
            task, failure, num_more = self._wrong
            view = self._repository.refresh()
            self._spoilt = spoilt(view, task=task, failure=failure, num_more=num_more)
            seen = frozenset(one.name for one in view.generations)
            self._wrong, self._find_late = None, partial(late, task=task, failure=failure, seen=seen)
        for name, reason in list(self._spoilt.items()):
            assert self._newest is not None
            self._repository.quarantine(name, reason, term=self._newest.term)
            del self._spoilt[name]

    def _quarantine_late(self, term: int) -> None:
        if self._find_late is not None:
            for name, reason in self._find_late(self._repository.refresh()).items():
                self._repository.quarantine(name, reason, term=term)
            self._find_late = None

    def _going_on(self, ending: Ending, move: Retry | StepBack) -> str:
        what = f"attempt {ending.term} {'ended' if ending.cause == 'preempted' else 'failed'}"
        what = what if self._task else "no attempt could begin"
        step = self._durable_step(self._repository.view)
        where = f"from step {step}" if step else "from the beginning"
        without = f", without {', '.join(move.without)}" if move.without else ""
        return f"{what}: {ending.reason}; trying again in {move.after_s:g} s {where}{without}"

    def _ending(self, error: AttemptFailed | Unavailable) -> Ending:
        """``Fenced`` if a later attempt has begun meanwhile: then this one's failure decides nothing."""
        view = self._repository.view
        with suppress(StoreError):
            view = self._repository.refresh()
        if self._task is not None and view.term > self._task.term:
            raise taken_over(self._repository.run, view.term, view.owner) from error
        heard, durable_step = self._display.last_step(), self._durable_step(view)
        reached = Ending(
            term=view.term,
            cause="store",
            reason=_first_line(error),
            ended_s=self._clock(),
            step=heard.step if heard else durable_step,
            durable_step=durable_step,
        )
        return _as_told(reached, error) if isinstance(error, AttemptFailed) else reached

    def _durable_step(self, view: View) -> int:
        newest = latest([one for one in of_this_life(view) if one.name not in self._spoilt])
        task = self._newest
        if newest is None or task is None or task.resume == "latest" or newest.term >= task.term:
            return newest.step if newest else 0
        # Nothing is saved yet of the branch that was asked for.
        with suppress(NothingToResume):
            return find(view, task.resume, task.saving.retention if task.saving else Retention()).step
        return 0

    def _failure(self, ending: Ending) -> Incident:
        """Of what nobody is to blame for it is an interruption."""
        heard = self._display.last_step()
        return Incident(
            kind="interruption" if ending.cause == "preempted" else "failure",
            step=ending.step,
            seconds=heard.ago_s if heard else None,
            text=ending.reason,
        )

    def _note(
        self,
        task: Task | None,
        how: How,
        ending: Ending | None = None,
        log_tail: tuple[str, ...] = (),
        given_up: str | None = None,
    ) -> None:
        """Not of an attempt that got no lease: it has no term to be called by."""
        if task is None:
            return
        note = Note(
            term=task.term,
            how=how,
            ending=ending,
            log_tail=log_tail,
            given_up=given_up,
            skips=self._skips,
            spoilt=self._spoilt_on_disk,
            is_branch=task.term == self._branch_term,
        )
        self._try(lambda: leave_note(self._repository.store, self._repository.run, note))

    def _leave_word(self, incident: Incident) -> None:
        if self._task is not None:
            self._words.leave(self._task.described(), incident, now_s=self._clock())

    def _try(self, write: Callable[[], None]) -> None:
        """What can't be written now may still be later, but nobody waits for it."""
        with suppress(StoreError, TimeoutError):
            within(self._word_timeout_s, write)


def _as_told(reached: Ending, error: AttemptFailed) -> Ending:
    """A rank that had not loaded yet has done no step: what it was about to go on from is where it stood."""
    failure = error.failure
    return replace(
        reached,
        cause=error.cause,
        step=failure.step or reached.step,
        ranks=failure.ranks,
        nodes=failure.nodes,
        all_nodes=error.nodes,
    )


def _first_line(error: AttemptFailed | Unavailable) -> str:
    reason = error.reason if isinstance(error, AttemptFailed) else str(error)
    return without_credentials(reason).partition("\n")[0]
