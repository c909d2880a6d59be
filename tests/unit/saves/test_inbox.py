"""Nothing of a dropped save stays in the mailbox, also what its ranks posted late."""

from contextlib import suppress

import pytest

from checkpointing.format.manifest import Cut
from checkpointing.generations.repository import Repository
from checkpointing.saving.publishing.publisher import Publisher, SavingAttempt
from checkpointing.saving.save import SaveFailed, Tally
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Letters, cut_of, names, save_of

WORLD_SIZE = 3


class Group:
    """Publishers of three ranks. ``publish`` lets some of them publish, in the order named."""

    def __init__(self) -> None:
        self.repository = Repository(MemoryStore(), RUN)
        self.term = self.repository.take_over("me")
        self.mailbox = Letters()
        attempts = [SavingAttempt(rank=rank, term=self.term, deadline_s=0.0) for rank in range(WORLD_SIZE)]
        self._publishers = [
            Publisher(self.repository, self.mailbox, attempt, Tally()) for attempt in attempts
        ]

    def cut(self, number: int) -> Cut:
        return cut_of(number * 10, term=self.term, number=number, world_size=WORLD_SIZE)

    def publish(self, number: int, *ranks: int) -> None:
        for rank in ranks:
            self._publishers[rank].publish(save_of(self.cut(number), rank), lambda: None)

    def skip(self, number: int) -> None:
        self._publishers[0].skip(self.cut(number))


def test_the_receipts_of_a_dropped_save_are_deleted() -> None:
    group = Group()
    with pytest.raises(SaveFailed, match="rank 1: nothing written"):
        group.publish(1, 2, 0)
    assert group.mailbox.waiting() == []


def test_what_a_rank_posts_after_its_save_was_dropped_goes_with_the_next_one() -> None:
    group = Group()
    for number in (1, 2):
        with suppress(SaveFailed):
            group.publish(number, 2, 0)
        group.publish(number, 1)
    assert len(group.mailbox.waiting()) == 4
    group.publish(3, 1, 2, 0)
    assert group.mailbox.waiting() == []
    assert len(group.repository.view.generations) == 1


def test_messages_of_a_save_of_which_rank_0_has_no_share_are_deleted() -> None:
    group = Group()
    group.skip(1)
    group.publish(1, 1, 2)
    assert len(group.mailbox.waiting()) == 4
    group.publish(2, 1, 2, 0)
    assert group.mailbox.waiting() == []


def test_a_save_that_is_skipped_ahead_of_others_is_not_forgotten() -> None:
    group = Group()
    group.skip(3)
    with suppress(SaveFailed):
        group.publish(1, 2, 0)
    group.publish(2, 1, 2, 0)
    group.publish(3, 1, 2)
    group.publish(4, 1, 2, 0)
    assert group.mailbox.waiting() == []
    assert names(group.repository.view.generations) == [group.cut(number).generation for number in (2, 4)]
