"""The alarm of a host whose link to the others is slow: when links are tried, who is named, who is not."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from checkpointing.saving.save import Upload
from jobs.alerts.rules import Alarm, Alarms, Bounds, Wanted
from jobs.alerts.slow_hosts import HostLinks, LinksTried
from jobs.execution.messages import Heartbeat, WayRate

NEVER = Wanted(every_s=None, every_steps=None)
BEAT = Heartbeat(run_id="", rank=0, phase="window", step=1, num_steps=9, step_s=1.0, memory_bytes=0)
MB = 1e6
HOSTS = "abcd"
TOOK_S = 2.0
UPLOAD = Upload(step=1, num_bytes=1, took_s=1.0, is_done=False)


def ways(
    sends: Mapping[str, float] | None = None,
    takes: Mapping[str, float] | None = None,
    hosts: Iterable[str] = HOSTS,
) -> list[WayRate]:
    """Each host sends to each other one, at 100 MB/s unless one of both is slower."""
    return [
        WayRate(sender=one, receiver=other, bytes_per_s=rate * MB)
        for one in hosts
        for other in hosts
        if one != other
        if (rate := min((sends or {}).get(one, 100.0), (takes or {}).get(other, 100.0))) >= 0
    ]


class Run:
    """A rank on each host that does a step a second. Whenever a look is due, it shows ``ways``."""

    def __init__(self, hosts: Sequence[str] = HOSTS, *, world_size: int | None = None) -> None:
        self.links = HostLinks(0.25, world_size or len(hosts))
        self.ways: list[WayRate] | None = ways(hosts=hosts)
        self.step_s = 1.0
        self.uploads = False
        self.now = 0.0
        self.looks: list[float] = []
        self.alarms: list[Alarm] = []
        self._hosts = hosts
        self._alarms = Alarms(Bounds(min_interval_s=0.0), NEVER)

    def goes_on(self, for_s: float) -> None:
        end = self.now + for_s
        while self.now < end:
            self.now += 1
            for rank, node in enumerate(self._hosts):
                upload = UPLOAD if self.uploads else replace(UPLOAD, is_done=True)
                beat = replace(
                    BEAT, rank=rank, node=node, step=int(self.now), step_s=self.step_s, upload=upload
                )
                self.links.hear(beat, self.now)
            if hosts := self.links.due(self.now):
                self._look(hosts)

    def _look(self, hosts: Sequence[str]) -> None:
        self.looks.append(self.now)
        self.now += TOOK_S
        if tried := self.links.tried(hosts, self.ways, TOOK_S, self.now):
            self.alarms += self._alarms.hear(tried, self.now)


@pytest.mark.parametrize(
    ("sends", "takes", "told"),
    [
        (
            {"c": 0.5},
            None,
            "c sends to other hosts at 0.50 MB/s, 200 times slower than they do (100.00 MB/s)",
        ),
        (
            None,
            {"c": 20},
            "c takes from other hosts at 20.00 MB/s, 5 times slower than they do (100.00 MB/s)",
        ),
    ],
)
def test_a_host_whose_ways_are_all_slow_in_two_looks_is_named_and_over_when_they_are_not(
    sends: Mapping[str, float] | None, takes: Mapping[str, float] | None, told: str
) -> None:
    run = Run()
    run.ways = ways(sends, takes)
    run.goes_on(40)
    assert len(run.looks) == 1 and not run.alarms
    run.goes_on(40)
    (alarm,) = run.alarms
    assert (alarm.kind, alarm.text) == ("slow network", told)
    assert alarm.facts["node"] == "c"
    run.ways = ways()
    run.goes_on(40)
    assert [alarm.is_over for alarm in run.alarms] == [False, True]


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(ways({"a": 26.0}), id="not four times as slow"),
        pytest.param(ways({"a": 1, "b": 1, "c": 1}), id="most are slow"),
        pytest.param([way for way in ways() if way.sender != "a"], id="one that tells nothing"),
        pytest.param(
            [replace(way, bytes_per_s=1.0) if way.sender + way.receiver == "ab" else way for way in ways()],
            id="one way alone is slow",
        ),
        pytest.param(
            [way for way in ways({"a": 1}) if way.sender != "a" or way.receiver == "b"],
            id="only one way of it was tried",
        ),
        pytest.param(None, id="nothing could be tried"),
    ],
)
def test_nobody_is_named_where(found: list[WayRate] | None) -> None:
    run = Run()
    run.ways = found
    run.goes_on(8000)
    assert len(run.looks) > 2 and not run.alarms


def test_a_host_that_seems_slow_once_is_not_named() -> None:
    run = Run()
    for host in "abcb":
        run.ways = ways({host: 1})
        run.goes_on(32)
    assert len(run.looks) == 4 and not run.alarms


def test_while_another_host_seems_slow_the_alarm_stays() -> None:
    run = Run()
    for host in "aab":
        run.ways = ways({host: 1})
        run.goes_on(32)
    assert [(alarm.facts.get("node"), alarm.is_over) for alarm in run.alarms] == [("a", False)]


def test_of_several_slow_hosts_the_slowest_is_named() -> None:
    run = Run("abcdefg")
    run.ways = ways({"b": 2, "d": 1}, {"e": 3}, hosts="abcdefg")
    run.goes_on(60)
    assert [alarm.facts["node"] for alarm in run.alarms] == ["d"]


def test_a_healthy_run_is_looked_at_once_at_its_start_and_then_seldom() -> None:
    run = Run()
    run.goes_on(20_000)
    assert 20 < run.looks[0] < 25
    assert all(later - earlier > 3600 for earlier, later in pairwise(run.looks))
    assert len(run.looks) == 6


def test_as_soon_as_steps_take_longer_links_are_tried() -> None:
    run = Run()
    run.goes_on(600)
    run.step_s = 1.2
    run.goes_on(30)
    assert len(run.looks) == 1
    run.step_s = 1.4
    run.goes_on(10)
    assert len(run.looks) == 2


@pytest.mark.parametrize("num_s", [1000, 50_000])
def test_looks_take_half_a_minute_and_a_thousandth_of_the_time_at_most(num_s: int) -> None:
    run = Run("abc")
    run.ways = ways({"a": 1}, hosts="abc")
    run.goes_on(num_s)
    assert len(run.looks) * TOOK_S <= 30 + run.now / 1000
    assert len(run.looks) * TOOK_S > 25


def test_what_cannot_be_tried_counts_as_well() -> None:
    run = Run()
    run.ways, run.step_s = None, 1.0
    run.goes_on(100)
    run.step_s = 2.0
    run.goes_on(400)
    assert len(run.looks) * TOOK_S <= 31


def test_nothing_is_tried_before_all_ranks_are_known_nor_between_two_hosts() -> None:
    for run in (Run(world_size=5), Run("ab"), Run("aabb"), Run(("a", "b", "", "d"))):
        run.goes_on(5000)
        assert not run.looks


def test_nothing_is_tried_before_all_ranks_do_steps() -> None:
    run = Run()
    for phase in ("setup", "window"):
        for rank, node in enumerate(HOSTS):
            run.links.hear(replace(BEAT, rank=rank, node=node, phase=phase if rank else "window"), 0.0)
        assert bool(run.links.due(100.0)) is (phase == "window")


def test_nothing_is_tried_while_a_share_is_uploaded_nor_counts_if_one_has_begun() -> None:
    run = Run()
    run.uploads = True
    run.goes_on(5000)
    assert not run.looks
    assert run.links.tried(HOSTS, ways({"a": 1}), TOOK_S, run.now) is None
    assert run.links.tried(HOSTS, ways({"a": 1}), TOOK_S, run.now) is None


def test_a_host_that_only_slow_ones_send_to_is_not_slow_itself() -> None:
    """Each of many hosts is tried with the next four, which may be in one rack."""
    hosts = "abcdefghijkl"
    run = Run(hosts)
    run.ways = [
        WayRate(
            sender=one, receiver=other, bytes_per_s=(0.5 if other == "f" else 1) if one in "bcde" else 100
        )
        for place, one in enumerate(hosts)
        for other in (hosts[(place + away) % 12] for away in (1, 2, 3, 4))
    ]
    run.goes_on(60)
    assert [(alarm.facts["node"], alarm.facts["bytes_per_s"]) for alarm in run.alarms] == [("b", 1)]


def test_of_very_many_hosts_others_are_tried_each_time_and_suspects_each_time() -> None:
    hosts = [f"{number:03}" for number in range(100)]
    run = Run(hosts)
    run.goes_on(19)
    run.now += 5
    first = [*run.links.due(run.now)]
    assert first == hosts[:64]
    slow = [
        WayRate(sender=one, receiver=other, bytes_per_s=1.0 if one == "007" else 100.0)
        for one in first
        for other in first
        if one != other
    ]
    assert run.links.tried(first, slow, TOOK_S, run.now) == LinksTried(slow=None, is_clear=False)
    again = [*run.links.due(run.now + 60)]
    assert again[0] == "007" and len(again) == 64
    assert {*first, *again} == {*hosts}


def test_no_noise_of_a_busy_machine_raises_an_alarm() -> None:
    """Each try is one of a host that may stand still for most of it; a host is as fast as its best one."""
    rng = random.Random(7)
    for _ in range(300):
        run = Run("abc")
        for _ in range(4):
            run.ways = [
                replace(way, bytes_per_s=max(rng.uniform(0.1, 1.0) for _ in range(2)) * 500 * MB)
                for way in ways(hosts="abc")
            ]
            run.goes_on(35)
        assert not run.alarms
