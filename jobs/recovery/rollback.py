"""Which generations nothing may go on from after a loss that went wrong, and why. Pure."""

from collections.abc import Collection
from itertools import pairwise

from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import Generation, View
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task


def spoilt(view: View, *, task: Task, failure: Failure, num_more: int) -> dict[str, str]:
    """By name and with the reason what ``task`` saved after its loss went wrong, and ``num_more`` before."""
    bad, line = failure.bad_loss, _line(view, task)
    good = [one for one in line if bad is None or one.step <= bad.good_step]
    good = good[: max(0, len(good) - num_more)]
    if task.resume == "latest":
        # One must be left to go on from, however it is.
        good = good or line[:1]
    return {one.name: _reason(failure) for one in line if one not in good}


def late(view: View, *, task: Task, failure: Failure, seen: Collection[str]) -> dict[str, str]:
    """What ``task`` has committed besides, after its end: it is fenced only when the next attempt begins."""
    bad = failure.bad_loss
    if bad is None:
        return {}
    mine = [one for one in of_this_life(view) if one.term == task.term and one.name not in seen]
    return {one.name: _reason(failure) for one in mine if one.step > bad.good_step}


def _reason(failure: Failure) -> str:
    return f"the loss went wrong after it: {failure.reason}"


def _line(view: View, task: Task) -> list[Generation]:
    """What the attempt saved and what it stood on, oldest first, but nothing from before somebody asked for a
    generation by name: what is newer than that one is of a branch that was left, where nothing went wrong.
    """
    kept = [one for one in of_this_life(view) if one.quarantined is None]
    if task.resume != "latest":
        return [one for one in kept if one.term == task.term]
    # Where a branch begins the steps fall.
    begins = [place for place, (one, other) in enumerate(pairwise(kept), start=1) if other.step < one.step]
    return kept[max(begins, default=0) :]
