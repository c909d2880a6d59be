"""Which rank's word counts when a worker group fails: that of the one that died, whoever speaks first."""

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


def test_a_rank_that_spoke_before_it_died_has_said_it_itself() -> None:
    troubles = RankFailures(1)
    troubles.raised(0, failure(0, "CUDA out of memory", "oom"), now=1)
    troubles.lost(0, DEATH, now=1)

    told = troubles.failure()

    assert told is not None
    assert told.status == "oom"
