"""A driver's work on its ranks' heartbeats grows with their number and no faster. Counted, not timed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from jobs.alerts.rules import Alarms, Bounds, Wanted
from jobs.alerts.slow_hosts import HostLinks
from jobs.execution.board import Assembled, Ready
from jobs.execution.hang_detection import HangDetection
from jobs.execution.messages import Heartbeat, SessionLimits, beat_interval_s
from jobs.execution.monitor import BrokenWay, GroupMonitor, Inquiry
from jobs.training.task.measurement import Failure

FEW, MANY = 512, 2048
# Four times as many ranks take four times as much; sorting takes a little more. The square is 16.
MOST_GROWTH = 6
LIMITS = SessionLimits(schedule_timeout_s=60, cell_timeout_s=600, hang_timeout_s=30)
NEVER = Wanted(every_s=None, every_steps=None)


class Counted(float):
    """A number that counts how often numbers like it are compared."""

    num_compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.num_compared += 1
        return float(self) < float(other)

    def __gt__(self, other: float) -> bool:
        Counted.num_compared += 1
        return float(self) > float(other)

    def __eq__(self, other: object) -> bool:
        Counted.num_compared += 1
        return isinstance(other, float) and float(self) == float(other)

    __hash__ = float.__hash__

    def __add__(self, other: float) -> "Counted":
        return Counted(float(self) + float(other))

    def __truediv__(self, other: float) -> "Counted":
        return Counted(float(self) / float(other))


class Host(str):
    """A host's name that counts how often it is looked up or compared."""

    num_looks = 0

    def __hash__(self) -> int:
        Host.num_looks += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Host.num_looks += 1
        return str.__eq__(self, other)


def beat(rank: int, **more: object) -> Heartbeat:
    own = Heartbeat(run_id="r", rank=rank, phase="window", step=1, num_steps=9, step_s=1.0, memory_bytes=0)
    return replace(own, **more)  # type: ignore[arg-type]  # fields of it


def compared(work: Callable[[int], None], num_ranks: int) -> int:
    Counted.num_compared = 0
    work(num_ranks)
    return Counted.num_compared


@pytest.mark.parametrize("what", ["pace", "load"])
def test_alarms_compare_all_ranks_so_often_that_a_round_grows_with_their_number(what: str) -> None:
    def hear(num_ranks: int) -> None:
        alarms = Alarms(Bounds(), NEVER)
        for number in range(13):
            for rank in range(num_ranks):
                value = Counted(50 + number / 100 + rank / 1e6)
                told = {"pace_s": value} if what == "pace" else {"utilization_pct": value}
                alarms.hear(beat(rank, **told), 10.0 * number)

    assert compared(hear, MANY) < MOST_GROWTH * compared(hear, FEW)


@pytest.mark.parametrize(
    ("what", "usual", "bad", "kind"),
    [("pace_s", 1.0, 3.0, "straggler"), ("utilization_pct", 90.0, 1.0, "low utilization")],
)
def test_one_bad_rank_of_many_is_still_found(what: str, usual: float, bad: float, kind: str) -> None:
    alarms, found = Alarms(Bounds(), NEVER), []
    for number in range(14):
        for rank in range(MANY):
            value = (bad if rank == 7 else usual) + number / 1000
            found += alarms.hear(beat(rank, **{what: value}), 10.0 * number)
    (alarm,) = found
    assert (alarm.kind, alarm.facts["rank"]) == (kind, 7)


def test_who_is_furthest_behind_is_found_in_one_walk_over_the_ranks() -> None:
    def hang(num_ranks: int) -> None:
        progress = HangDetection(LIMITS, num_ranks, now=0)
        for now in (0, 1):
            for rank in range(num_ranks):
                progress.note(beat(rank, step=Counted(now + (rank != 3))), now)
        for rank in range(num_ranks):
            progress.note(beat(rank, step=Counted(1 + (rank != 3))), 32)
        failure = progress.failure(32)
        assert failure is not None and failure.ranks == (3,)

    assert compared(hang, MANY) < MOST_GROWTH * compared(hang, FEW)


def test_while_steps_go_on_nobody_asks_who_is_behind() -> None:
    progress = HangDetection(LIMITS, FEW, now=0)
    for now in (0, 1):
        for rank in range(FEW):
            progress.note(beat(rank, step=Counted(now)), now)
    Counted.num_compared = 0
    assert progress.failure(2) is None
    assert Counted.num_compared == 0


def test_a_limit_shorter_than_the_hang_timeout_still_counts() -> None:
    progress = HangDetection(replace(LIMITS, patience_s={"save": 5.0}), 1, now=0)
    progress.note(replace(beat(0, doing="save"), phase="gather"), 0)
    assert progress.failure(5) is None
    failure = progress.failure(5.5)
    assert failure is not None and failure.reason.startswith("no step for 5 s")


def test_hosts_are_sorted_only_when_a_look_at_their_links_is_due() -> None:
    links = HostLinks(0.25, FEW)
    for rank in range(FEW):
        links.hear(beat(rank, node=Host(f"h{rank // 8}")), 0.0)
    Host.num_looks = 0
    assert not [links.due(now / 100) for now in range(1000)][-1]
    assert Host.num_looks == 0
    assert len(links.due(30.0)) == 64


def test_two_hosts_have_no_links_to_compare() -> None:
    links = HostLinks(0.25, 16)
    for rank in range(16):
        links.hear(beat(rank, node=f"h{rank // 8}"), 0.0)
    assert links.due(30.0) == ()


def test_steps_that_become_slow_bring_the_next_look_forward() -> None:
    links, now = HostLinks(0.25, 3), 0.0
    for step in range(1, 60):
        for rank in range(3):
            links.hear(beat(rank, step=step, node=f"h{rank}"), float(step))
    assert links.due(59.0)
    links.tried(["h0", "h1", "h2"], None, 1.0, 60.0)
    assert not links.due(100.0)
    for step, now in zip(range(60, 80), count(100.0), strict=False):
        links.hear(beat(0, step=step, step_s=2.0, node="h0"), now)
    assert links.due(now + 1)


def test_ways_between_hosts_are_told_by_the_first_rank_of_each() -> None:
    way = BrokenWay(node_id="n1", host="one", other_id="n2", other_host="two")
    ways = [way, replace(way, node_id="n1", other_id="n3", other_host="three")]
    monitor = GroupMonitor(8, LIMITS, 0.0, _inquiry(ways))
    monitor.hear(Assembled(node_ids=tuple(f"n{rank // 2}" for rank in range(8))), 0.0)
    for rank in range(8):
        monitor.hear(Ready(rank=rank, logs=(), oom_kills=0), 0.0)
        monitor.hear(beat(rank), 0.0)
        monitor.hear(beat(rank, step=2), 1.0)
    for rank in range(8):
        monitor.hear(beat(rank, step=2), 40.0)
    failure = monitor.verdict(40.0)
    assert failure is not None and failure.ranks == (2, 3)
    assert "rank 2 on one does not reach rank 4 on two" in failure.reason


def _inquiry(ways: list[BrokenWay]) -> Inquiry:
    return Inquiry(
        remains=lambda node, ready: None,
        last_lines=lambda standing: (),
        unmet=lambda ranks, limit_s: Failure(status="hang", reason="unmet", ranks=ranks),
        broken_ways=lambda nodes: ways,
    )


@pytest.mark.parametrize(("num_ranks", "interval_s"), [(1, 0.5), (1024, 0.5), (16_384, 8.0)])
def test_however_many_ranks_there_are_they_send_at_most_2048_heartbeats_a_second(
    num_ranks: int, interval_s: float
) -> None:
    assert beat_interval_s(num_ranks) == interval_s
    assert num_ranks / beat_interval_s(num_ranks) <= 2048


def test_a_rank_that_sends_more_seldom_is_silent_so_much_later() -> None:
    for num_ranks, silent_s in ((1024, 30.0), (16_384, 37.5)):
        progress = HangDetection(LIMITS, num_ranks, now=0)
        assert progress.silent(silent_s) == []
        assert len(progress.silent(silent_s + 0.1)) == num_ranks
