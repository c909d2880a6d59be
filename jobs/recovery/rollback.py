"""Finds the generations that a run must not resume from after its loss went wrong, or a device computed
wrongly, and quarantines them.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import Generation, LogView
from jobs.recovery.last_clean import away_from, last_clean
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task

IsGood = Callable[[Generation], bool]


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
        """Plans the rollback: what ``task`` saved after it went wrong, and ``num_more`` generations before
        that.
        """
        self._wrong = (task, failure, num_more)

    def quarantine_spoilt(self, term: int) -> None:
        """Call before the next attempt chooses its generation. ``term`` is that of the newest attempt."""
        if self._wrong is not None:
            task, failure, num_more = self._wrong
            view = self.repository.refresh()
            is_good = self._good(task, failure)
            reason = _reason(failure)
            found = spoilt(view, task, is_good, num_more, away_from=self._away_from(task, failure))
            self.names = {one.name: reason for one in found}
            seen = frozenset(one.name for one in view.generations)
            self._wrong = None
            self._find_late = lambda view: {one.name: reason for one in late(view, task, is_good, seen)}
        for name, reason in list(self.names.items()):
            self.repository.quarantine(name, reason, term=term)
            del self.names[name]

    def _good(self, task: Task, failure: Failure) -> IsGood:
        if failure.corruption is not None:
            moment = last_clean(self.repository, task, failure)
            return lambda one: (one.term, one.step) <= moment
        bad = failure.bad_loss
        return lambda one: bad is None or one.step <= bad.good_step

    def _away_from(self, task: Task, failure: Failure) -> int | None:
        return away_from(self.repository, task, failure) if failure.corruption is not None else None

    def quarantine_late(self, term: int) -> None:
        """Quarantines what the attempt that went wrong has committed until ``term`` fenced it."""
        if self._find_late is not None:
            for name, reason in self._find_late(self.repository.refresh()).items():
                self.repository.quarantine(name, reason, term=term)
            self._find_late = None


def spoilt(
    view: LogView, task: Task, is_good: IsGood, num_more: int, *, away_from: int | None = None
) -> list[Generation]:
    """What ``task`` saved and built on that is not good, and ``num_more`` generations before that.

    If nothing good is left, and all that is was saved without the nodes at fault (from the attempt
    ``away_from`` on), what may be wrong lies before all of it: to go back in it would only lose steps.
    """
    line = _line(view, task)
    good = [one for one in line if is_good(one)]
    good = good[: max(0, len(good) - num_more)]
    if task.resume == "latest":
        # One generation must be left to resume from, good or not.
        good = good or _as_good_as_the_first(line, task, away_from) or line[:1]
    return [one for one in line if one not in good]


def _as_good_as_the_first(line: list[Generation], task: Task, away_from: int | None) -> list[Generation]:
    if away_from is None or not line or line[0].term < away_from:
        return []
    return [one for one in line if one.term < task.term]


def late(view: LogView, task: Task, is_good: IsGood, seen: Collection[str]) -> list[Generation]:
    """What ``task`` has committed since, after its end, that is not good: a task is fenced only when the next
    attempt begins.
    """
    mine = [one for one in of_this_life(view) if one.term == task.term and one.name not in seen]
    return [one for one in mine if not is_good(one)]


def _reason(failure: Failure) -> str:
    what = (
        "a device may have computed wrongly before it"
        if failure.corruption
        else "the loss went wrong after it"
    )
    return f"{what}: {failure.reason}"


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
