"""Finds the newest moment at which a device that computes wrongly now was seen to compute as the others."""

from checkpointing.generations.repository import Repository
from jobs.training.integrity.clean_checks import read_clean_check
from jobs.training.task.measurement import Failure
from jobs.training.task.task import Task

# A failure must be decided on soon, and each is a request.
_MOST_READ = 100
Moment = tuple[int, int]
"""A term and a step of it: (term, step) of whatever was saved up to there is no larger."""


def last_clean(repository: Repository, task: Task, failure: Failure) -> Moment:
    """The newest check of this attempt, else the newest before it of each node that is at fault, whichever
    is oldest. Of nodes that were never checked before, what this attempt started from counts as clean.

    Raises ``StoreError`` if the store is away.
    """
    corruption = failure.corruption
    assert corruption is not None
    if corruption.clean_step is not None:
        return task.term, corruption.clean_step
    moment, unseen = (task.term, -1), {*corruption.nodes}
    first = max(1, repository.view.life_term, task.term - _MOST_READ)
    for term in range(task.term - 1, first - 1, -1):
        check = read_clean_check(repository.store, repository.run, term)
        if check is None:
            continue
        if not corruption.nodes:
            return term, check.step
        if seen := unseen.intersection(check.nodes):
            moment, unseen = (term, check.step), unseen - seen
        if not unseen:
            break
    return moment


def away_from(repository: Repository, task: Task, failure: Failure) -> int:
    """The first of the attempts without the nodes that are at fault, up to the one before this attempt; this
    attempt if that one had them, or nobody knows. What such attempts saved is as good as what they began
    with.

    Raises ``StoreError`` if the store is away.
    """
    corruption = failure.corruption
    assert corruption is not None
    first = term = task.term
    if corruption.clean_step is not None or not corruption.nodes:
        return first
    oldest = max(1, repository.view.life_term, task.term - _MOST_READ)
    while term > oldest:
        term -= 1
        check = read_clean_check(repository.store, repository.run, term)
        if check is None or not {*corruption.nodes}.isdisjoint(check.nodes):
            break
        first = term
    return first
