"""The alarm of a host whose link to the store is slow: what raises it, what ends it, who is not named."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from checkpointing.saving.save import Upload
from jobs.alerts.rules import Alarm, Alarms, Bounds, Wanted
from jobs.alerts.slow_links import UploadRates
from jobs.execution.messages import Heartbeat

NEVER = Wanted(every_s=None, every_steps=None)
BEAT = Heartbeat(run_id="", rank=0, phase="window", step=1, num_steps=9, step_s=1.0, memory_bytes=0)
MB = 1e6
# Of each rank, which node it is on.
FOUR = ("a", "b", "c", "d")


def beats(step: int, took_s: Sequence[float], now: float, nodes: Sequence[str]) -> Iterable[Heartbeat]:
    """What ranks tell ``now`` seconds after a save of 10 MB each began, of which each takes so long."""
    for rank, whole_s in enumerate(took_s):
        upload = Upload(step=step, num_bytes=int(10 * MB), took_s=min(now, whole_s), is_done=now >= whole_s)
        yield replace(BEAT, rank=rank, node=nodes[rank], upload=upload)


class Saves:
    """One save after another. ``found`` has the alarms, each with the second at which it was raised."""

    def __init__(self, nodes: Sequence[str] = FOUR, **bounds: float | None) -> None:
        self.found: list[tuple[Alarm, float]] = []
        self._nodes = nodes
        self._alarms = Alarms(Bounds(**{"min_interval_s": 0.0, **bounds}), NEVER)  # type: ignore[arg-type]  # mypy can't see which field each one is
        self._step = 0

    def save(self, *took_s: float, lasts_s: float | None = None) -> None:
        """Lasts until the slowest is done, or ``lasts_s``."""
        self._step += 20
        now, end = 0.0, lasts_s or max(took_s) + 1
        while now < end:
            now += 0.5
            for beat in beats(self._step, took_s, now, self._nodes):
                self.found += [(alarm, now) for alarm in self._alarms.hear(beat, 1000 * self._step + now)]

    def kinds(self) -> list[tuple[str, bool]]:
        return [(alarm.kind, alarm.is_over) for alarm, _ in self.found]

    def named(self) -> list[str]:
        return [str(alarm.facts["node"]) for alarm, _ in self.found if not alarm.is_over]


def test_a_host_that_is_slow_in_two_saves_is_named_with_both_rates_and_over_when_it_is_not() -> None:
    saves = Saves()
    saves.save(1, 1.25, 20, 1)
    assert saves.found == []
    saves.save(1, 1.25, 20, 1)
    ((alarm, _),) = saves.found
    assert alarm.kind == "slow link"
    assert alarm.text == (
        "c uploads at 0.50 MB/s, other hosts at 10.00 MB/s: saves wait for its link to the store"
    )
    assert alarm.facts == {"node": "c", "bytes_per_s": 0.5 * MB, "usual_bytes_per_s": 10 * MB}
    saves.save(1, 1, 20, 1)
    assert len(saves.found) == 1
    saves.save(1, 1, 1, 1)
    assert saves.kinds() == [("slow link", False), ("slow link", True)]


def test_a_host_whose_upload_does_not_end_is_named_while_it_goes_on() -> None:
    saves = Saves()
    saves.save(1, 1000, 1, 1, lasts_s=40)
    assert saves.named() == ["b"]
    assert 31 < saves.found[0][1] < 33


def test_of_two_hosts_the_slow_one_is_named() -> None:
    saves = Saves(("a", "b"))
    for _ in range(2):
        saves.save(30, 1)
    assert saves.named() == ["a"]


def test_of_a_host_with_many_ranks_the_slowest_counts_and_its_own_ranks_are_not_its_yardstick() -> None:
    saves = Saves(("a", "a", "a", "b"))
    for _ in range(2):
        saves.save(0.01, 20, 19.8, 1)
    ((alarm, _),) = saves.found
    assert alarm.text.startswith("a uploads at 0.50 MB/s, ")


def test_of_several_slow_hosts_the_slowest_is_named() -> None:
    rates = UploadRates(0.25)
    for step in (20, 40):
        for now in (1, 30):
            for beat in beats(step, (1, 25, 29, 21, 1, 1, 1, 1), now, "abcdefgh"):
                rates.hear(beat)
    slowest = rates.slowest()
    assert slowest is not None and slowest.node == "c"


@pytest.mark.parametrize(
    "took_s",
    [
        pytest.param((20, 20, 20, 20), id="the store is slow for all"),
        pytest.param((0.1, 0.1, 1.9, 0.1), id="it costs less than two seconds"),
        pytest.param((10, 10, 30, 10), id="it is no four times as slow"),
    ],
)
def test_nobody_is_named_where(took_s: Sequence[float]) -> None:
    saves = Saves()
    for _ in range(5):
        saves.save(*took_s)
    assert saves.found == []


def test_a_store_that_is_away_names_nobody() -> None:
    saves = Saves()
    saves.save(1, 1, 1, 1)
    saves.save(300, 301, 302, 303)
    assert saves.found == []


def test_one_share_that_is_there_at_once_is_no_yardstick() -> None:
    saves = Saves()
    for _ in range(3):
        saves.save(0.4, 100, 101, 102)
    assert saves.found == []


def test_one_slow_save_now_and_then_names_nobody() -> None:
    saves = Saves()
    for number in range(20):
        saves.save(1, 20 if number % 2 else 1, 1, 1)
    assert saves.found == []


def test_ranks_of_one_host_and_of_hosts_without_a_name_are_compared_with_nobody() -> None:
    for nodes in (("a",) * 4, ("",) * 4, ("b", "b", "", "b")):
        saves = Saves(nodes)
        for _ in range(3):
            saves.save(1, 1, 90, 1)
        assert saves.found == []


def test_a_thousand_quiet_simulated_saves_name_nobody() -> None:
    """Simulated: rates that differ by a third, shares that differ by half, each tenth save retried once."""
    draw, saves = random.Random(5), Saves()
    for number in range(1000):
        took_s = [4 * draw.uniform(0.75, 1.25) for _ in FOUR]
        if number % 10 == 0:
            took_s[draw.randrange(4)] += 25
        saves.save(*took_s)
    assert saves.found == []


def test_it_is_switched_off_by_null() -> None:
    saves = Saves(slow_link=None)
    for _ in range(3):
        saves.save(1, 1, 50, 1)
    assert saves.found == []


def test_a_small_share_that_takes_a_request_and_that_no_save_waits_for_names_nobody() -> None:
    rates = UploadRates(0.25)
    for step in range(1, 4):
        for rank, (num_bytes, took_s) in enumerate(
            [(1000, 5.0), (10**9, 12.0), (10**9, 13.0), (10**9, 11.0)]
        ):
            upload = Upload(step=step, num_bytes=num_bytes, took_s=took_s, is_done=True)
            rates.hear(replace(BEAT, rank=rank, node=FOUR[rank], upload=upload))
        rates.hear(
            replace(BEAT, upload=Upload(step=step, num_bytes=1000, took_s=5.0, is_done=True), node="a")
        )
        assert rates.slowest() is None


def test_a_rank_that_was_left_out_of_a_save_keeps_nobody_from_being_named() -> None:
    """It tells of the one before again and again."""
    rates = UploadRates(0.25)
    before = Upload(step=1, num_bytes=10**7, took_s=1.0, is_done=True)
    for step in (2, 2, 3, 3):
        for rank, took_s in enumerate((1.0, 1.0, 20.0, 1.0)):
            upload = Upload(step=step, num_bytes=10**7, took_s=took_s, is_done=True)
            rates.hear(replace(BEAT, rank=rank, node=FOUR[rank], upload=upload))
            rates.hear(replace(BEAT, rank=4, node="e", upload=before))
    slow = rates.slowest()
    assert slow is not None and slow.node == "c"


@pytest.mark.parametrize(
    ("num_bytes", "took_s"), [(0, 0.0), (0, 3.0), (-10, 1.0), (10, float("inf")), (10, float("nan"))]
)
def test_what_no_upload_can_be_is_left_out(num_bytes: int, took_s: float) -> None:
    rates = UploadRates(0.25)
    for rank, node in enumerate(FOUR):
        upload = Upload(step=1, num_bytes=num_bytes, took_s=took_s, is_done=True)
        rates.hear(replace(BEAT, rank=rank, node=node, upload=upload))
    assert rates.slowest() is None
