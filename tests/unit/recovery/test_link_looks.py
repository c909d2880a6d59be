"""Who tries a run's links, and that no driver waits for it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from jobs.alerts.link_looks import LinkLooks
from jobs.alerts.slow_hosts import LinksTried
from jobs.execution.messages import Heartbeat, WayRate

BEAT = Heartbeat(run_id="", rank=0, phase="window", step=1, num_steps=9, step_s=1.0, memory_bytes=0)
HOSTS = "abc"


class Links:
    """Answers once it is ``let`` to, or once nobody wants to know any more; ``is_late``: only then."""

    is_late = False

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked: list[Sequence[str]] = []
        self.was_dropped = threading.Event()

    def rates(self, hosts: Sequence[str], is_wanted: Callable[[], bool]) -> Sequence[WayRate] | None:
        self.asked.append(hosts)
        while not self.let.wait(0.01):
            if not is_wanted():
                self.was_dropped.set()
                if self.is_late:
                    break
                return None
        return [
            WayRate(sender=one, receiver=other, bytes_per_s=1.0 if one == "b" else 100.0)
            for one in hosts
            for other in hosts
            if one != other
        ]


class Run:
    """Three ranks on three hosts, a step a second, and whom they are told of."""

    def __init__(self, links: Links, share: float | None = 0.25) -> None:
        self.told: list[LinksTried] = []
        self.looks = LinkLooks(share, links.rates, self.told.append, ticks=lambda: float(self._now))
        self._now = 0

    def goes_on(self, for_s: int) -> None:
        for _ in range(for_s):
            self._now += 1
            self.beats()

    def beats(self) -> None:
        for rank, node in enumerate(HOSTS):
            self.looks.hear(replace(BEAT, rank=rank, node=node, step=self._now))

    def begins_a_look(self, links: Links) -> None:
        self.looks.begins(3)
        self.goes_on(30)
        self.wait_until(lambda: bool(links.asked), "a look")

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + 10
        while not is_so():
            assert time.monotonic() < end_s, what
            self.beats()
            time.sleep(0.01)


def test_links_are_tried_beside_the_driver_which_tells_what_they_showed() -> None:
    links = Links()
    run = Run(links)
    with run.looks:
        run.begins_a_look(links)
        run.goes_on(5)
        assert links.asked == [["a", "b", "c"]] and not run.told
        links.let.set()
        run.wait_until(lambda: bool(run.told), "what it showed")
        assert run.told == [LinksTried(slow=None, is_clear=False)]
        run.goes_on(40)
        run.wait_until(lambda: len(run.told) == 2, "the second look")
    assert run.told[1].slow is not None and run.told[1].slow.node == "b"


def test_what_a_look_at_an_earlier_attempt_showed_is_not_told() -> None:
    links = Links()
    run = Run(links)
    with run.looks as looks:
        run.begins_a_look(links)
        looks.begins(3)
        assert links.was_dropped.wait(10)
        links.let.set()
        run.goes_on(30)
        run.wait_until(lambda: bool(run.told), "what the next one showed")
    assert run.told == [LinksTried(slow=None, is_clear=False)]


def test_nor_is_what_it_showed_after_the_next_attempt_has_begun() -> None:
    links = Links()
    links.is_late = True
    run = Run(links)
    with run.looks as looks:
        run.begins_a_look(links)
        looks.begins(3)
        assert links.was_dropped.wait(10)
        run.wait_until(lambda: run.goes_on(1) or len(links.asked) == 2, "the look at the next one")
    assert not run.told


def test_the_end_of_a_run_ends_a_look() -> None:
    links = Links()
    run = Run(links)
    with run.looks:
        run.begins_a_look(links)
    assert links.was_dropped.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "link-looks"]


def test_where_no_alarm_is_wanted_nothing_is_tried() -> None:
    links = Links()
    run = Run(links, share=None)
    with run.looks as looks:
        looks.begins(3)
        run.goes_on(5000)
    assert not links.asked
