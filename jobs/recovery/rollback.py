"""Which generations nothing may go on from after a loss that went wrong, and why; and their quarantine."""

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
    """One driver's. ``names`` are generations that nothing may go on from, and why, as long as the store was
    not there to be told. All its methods raise ``StoreError``, and then go on where they were.
    """

    repository: Repository
    names: dict[str, str] = field(default_factory=dict)
    _wrong: tuple[Task, Failure, int] | None = None
    _find_late: Callable[[LogView], dict[str, str]] | None = None

    def is_due(self, task: Task, failure: Failure, num_more: int) -> None:
        """From what ``task`` saved after its loss went wrong, and from ``num_more`` generations before."""
        self._wrong = (task, failure, num_more)

    def quarantine_spoilt(self, term: int) -> None:
        """Before it is decided what to go on from. ``term`` is that of the newest attempt."""
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
        """What the attempt that went wrong has committed until ``term`` fenced it."""
        if self._find_late is not None:
            for name, reason in self._find_late(self.repository.refresh()).items():
                self.repository.quarantine(name, reason, term=term)
            self._find_late = None


def spoilt(view: LogView, *, task: Task, failure: Failure, num_more: int) -> dict[str, str]:
    """By name and with the reason what ``task`` saved after its loss went wrong, and ``num_more`` before."""
    bad, line = failure.bad_loss, _line(view, task)
    good = [one for one in line if bad is None or one.step <= bad.good_step]
    good = good[: max(0, len(good) - num_more)]
    if task.resume == "latest":
        # One must be left to go on from, however it is.
        good = good or line[:1]
    return {one.name: _reason(failure) for one in line if one not in good}


def late(view: LogView, *, task: Task, failure: Failure, seen: Collection[str]) -> dict[str, str]:
    """What ``task`` has committed besides, after its end: it is fenced only when the next attempt begins."""
    bad = failure.bad_loss
    if bad is None:
        return {}
    mine = [one for one in of_this_life(view) if one.term == task.term and one.name not in seen]
    return {one.name: _reason(failure) for one in mine if one.step > bad.good_step}


def _reason(failure: Failure) -> str:
    return f"the loss went wrong after it: {failure.reason}"


def _line(view: LogView, task: Task) -> list[Generation]:
    """What the attempt saved and what it stood on, oldest first, but nothing from before somebody asked for a
    generation by name: what is newer than that one is of a branch that was left, where nothing went wrong.
    """
    kept = [one for one in of_this_life(view) if one.quarantined is None]
    if task.resume != "latest":
        return [one for one in kept if one.term == task.term]
    # Where a branch begins the steps fall.
    begins = [place for place, (one, other) in enumerate(pairwise(kept), start=1) if other.step < one.step]
    return kept[max(begins, default=0) :]
