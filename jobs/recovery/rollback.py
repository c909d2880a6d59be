"""Finds the generations that a run must not resume from after its loss went wrong, and quarantines them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import Generation, LogView
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task


@dataclass(slots=True, kw_only=True)
class Rollback:
    """The rollbacks of one driver. ``names`` are generations still to be quarantined in the store, with the
    reason.

    A method that raises ``StoreError`` continues where it stopped when it is called again.
    """

    repository: Repository
    names: dict[str, str] = field(default_factory=dict)
    _wrong: tuple[Task, Failure, int] | None = None
    _find_late: Callable[[LogView], dict[str, str]] | None = None

    def is_due(self, task: Task, failure: Failure, num_more: int) -> None:
        """Plans the rollback: what ``task`` saved after its loss went wrong, and ``num_more`` generations
        before that.
        """
        self._wrong = (task, failure, num_more)

    def quarantine_spoilt(self, term: int) -> None:
        """Call before the next attempt chooses its generation. ``term`` is that of the newest attempt."""
        if self._wrong is not None:
            task, failure, num_more = self._wrong
            view = self.repository.refresh()
            self.names = spoilt(view, task=task, failure=failure, num_more=num_more)
            seen = frozenset(one.name for one in view.generations)
            self._wrong, self._find_late = None, partial(late, task=task, failure=failure, seen=seen)
        for name, reason in list(self.names.items()):
            self.repository.quarantine(name, reason, term=term)
            del self.names[name]

    def quarantine_late(self, term: int) -> None:
        """Quarantines what the attempt with the bad loss has committed until ``term`` fenced it."""
        if self._find_late is not None:
            for name, reason in self._find_late(self.repository.refresh()).items():
                self.repository.quarantine(name, reason, term=term)
            self._find_late = None


def spoilt(view: LogView, *, task: Task, failure: Failure, num_more: int) -> dict[str, str]:
    """What ``task`` saved after its loss went wrong, and ``num_more`` generations before that; reasons by
    name.
    """
    bad, line = failure.bad_loss, _line(view, task)
    good = [one for one in line if bad is None or one.step <= bad.good_step]
    good = good[: max(0, len(good) - num_more)]
    if task.resume == "latest":
        # One generation must be left to resume from, good or not.
        good = good or line[:1]
    return {one.name: _reason(failure) for one in line if one not in good}


def late(view: LogView, *, task: Task, failure: Failure, seen: Collection[str]) -> dict[str, str]:
    """What ``task`` has committed since, after its end, by name: a task is fenced only when the next attempt
    begins.
    """
    bad = failure.bad_loss
    if bad is None:
        return {}
    mine = [one for one in of_this_life(view) if one.term == task.term and one.name not in seen]
    return {one.name: _reason(failure) for one in mine if one.step > bad.good_step}


def _reason(failure: Failure) -> str:
    return f"the loss went wrong after it: {failure.reason}"


def _line(view: LogView, task: Task) -> list[Generation]:
    """The generations that the attempt saved and built on, oldest first.

    If the user named a generation, only what the attempt saved counts. Newer ones before it belong to a
    branch that was left, where nothing went wrong.
    """
    kept = [one for one in of_this_life(view) if one.quarantined is None]
    if task.resume != "latest":
        return [one for one in kept if one.term == task.term]
    # Where a branch begins, the step is lower than the one before.
    begins = [place for place, (one, other) in enumerate(pairwise(kept), start=1) if other.step < one.step]
    return kept[max(begins, default=0) :]
