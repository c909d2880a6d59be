"""Which rank's word counts when a worker group fails: that of the one that died, whoever speaks first."""

from itertools import permutations

import pytest

from cluster.local_ray.timeouts import asked_every_s
from jobs.execution.rank_failures import GRACE_S, RankFailures
from jobs.training.task.measurement import Failure


def failure(rank: int, reason: str, status: str = "crash") -> Failure:
    return Failure(status=status, reason=reason, ranks=(rank,))


ECHO, DEATH = failure(1, "connection closed by peer"), failure(0, "its worker process has died")


def test_without_troubles_there_is_nothing_to_tell() -> None:
    troubles = RankFailures(2)

    assert not troubles
    assert troubles.failure() is None
    assert not troubles.is_all_told(now=1e9)


def test_a_death_counts_before_what_its_peer_raised_earlier() -> None:
    troubles = RankFailures(2)
    troubles.raised(1, ECHO, now=10)
    assert not troubles.is_all_told(now=10 + GRACE_S / 2)

    troubles.lost(0, DEATH, now=10 + GRACE_S / 2)

    assert troubles.is_all_told(now=10 + GRACE_S / 2)
    assert troubles.failure() == DEATH


def test_nobody_is_waited_for_longer_than_the_grace() -> None:
    troubles = RankFailures(2)
    troubles.raised(1, ECHO, now=0.0)
    troubles.raised(1, failure(1, "later"), now=GRACE_S)

    assert not troubles.is_all_told(now=GRACE_S)
    assert troubles.is_all_told(now=GRACE_S + 0.1)
    assert troubles.failure() == ECHO


def test_of_many_ranks_the_controllers_word_is_waited_for_that_comes_so_much_later() -> None:
    """It sleeps for an interval, and then waits as long for the answers, if one rank hangs."""
    for world_size in (2, 256, 257, 2048, 16_384):
        later_s = 2 * (asked_every_s(world_size) - asked_every_s(2))
        troubles = RankFailures(world_size)
        troubles.raised(1, ECHO, now=0.0)

        assert not troubles.is_all_told(now=later_s + GRACE_S)
        assert troubles.is_all_told(now=later_s + GRACE_S + 0.1)


def test_a_rank_that_spoke_before_it_died_has_said_it_itself() -> None:
    troubles = RankFailures(1)
    troubles.raised(0, failure(0, "CUDA out of memory", "oom"), now=1)
    troubles.lost(0, DEATH, now=1)

    told = troubles.failure()

    assert told is not None
    assert told.status == "oom"


ABORTED = "its worker process has died: SIGABRT"


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        # One is killed; of the others one hears of it and two abort.
        ([("lost", 3, "its worker process has died"), ("lost", 9, ABORTED), ("lost", 1, ABORTED)], 3),
        (
            [
                ("lost", 3, "its node is not reached any more"),
                ("raised", 1, ECHO.reason),
                ("lost", 9, ABORTED),
            ],
            3,
        ),
        # One aborts by itself; the others hear of it.
        ([("lost", 3, ABORTED), ("raised", 1, ECHO.reason), ("raised", 2, "broken pipe")], 3),
        # One says what is wrong; the others hear of it.
        ([("raised", 3, "ValueError: boom"), ("raised", 1, ECHO.reason), ("raised", 2, "broken pipe")], 3),
    ],
)
def test_in_whichever_order_ranks_end_the_one_that_others_speak_of_is_blamed(
    ends: list[tuple[str, int, str]], blamed: int
) -> None:
    for order in permutations(ends):
        troubles = RankFailures(len(ends))
        for moment, (way, rank, reason) in enumerate(order):
            getattr(troubles, way)(rank, failure(rank, reason), now=float(moment))
        told = troubles.failure()
        assert told is not None
        assert told.ranks == (blamed,), order


def test_of_ranks_that_abort_and_one_that_raised_the_first_is_blamed() -> None:
    troubles = RankFailures(3)
    troubles.raised(3, failure(3, "ValueError: boom"), now=0.0)
    troubles.lost(9, failure(9, ABORTED), now=1.0)

    told = troubles.failure()

    assert told is not None
    assert told.ranks == (3,)


def test_a_rank_that_has_left_its_last_state_is_not_waited_for() -> None:
    troubles = RankFailures(3)
    troubles.lost(0, DEATH, now=0.0)
    troubles.left(1)
    assert not troubles.is_all_told(now=0.1)

    troubles.left(2)

    assert troubles.is_all_told(now=0.1)
    assert troubles.failure() == DEATH


def test_a_rank_that_leaves_its_last_state_is_waited_for_as_long_as_it_said_and_no_longer() -> None:
    troubles = RankFailures(2)
    troubles.leaves(1, until=30.0)
    troubles.lost(0, DEATH, now=0.0)

    assert not troubles.is_all_told(now=29.9)
    assert troubles.is_all_told(now=30.1)


def test_ranks_without_a_part_in_a_hang_are_waited_for_and_the_one_that_hangs_is_not() -> None:
    troubles = RankFailures(3)
    assert not troubles.is_done((1,), since=0.0, now=0.1)

    troubles.left(0)
    troubles.left(2)

    assert troubles.is_done((1,), since=0.0, now=0.1)
    assert RankFailures(3).is_done((1,), since=0.0, now=GRACE_S + 0.1), "they never answered"


def test_a_rank_that_may_not_change_its_state_any_more_is_an_echo_of_what_really_went_wrong() -> None:
    left = Failure(status="crash", reason="PeersLost: a peer is gone, and the state was left", ranks=(0,))
    wrong = Failure(status="crash", reason="KeyError: 'x'", ranks=(1,))
    troubles = RankFailures(2)
    troubles.raised(0, left, now=0.0)
    troubles.raised(1, wrong, now=0.1)
    assert troubles.failure() == wrong
