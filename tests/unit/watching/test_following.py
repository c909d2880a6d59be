"""One reader for all who look: nobody waits for the store, and no reads are doubled."""

import threading
from collections.abc import Callable

import pytest

from checkpointing.stores.contract import Unavailable
from jobs.watching.following import Following


class Readings:
    """Counts its calls, and lets a test wait for the next one. ``doing`` is what a call does."""

    def __init__(self, doing: Callable[[int], int] = lambda number: number) -> None:
        self.doing = doing
        self.num_calls = 0
        self._called = threading.Condition()

    def __call__(self) -> int:
        with self._called:
            self.num_calls += 1
            number = self.num_calls
            self._called.notify_all()
        return self.doing(number)

    def wait_for(self, num_calls: int) -> None:
        with self._called:
            assert self._called.wait_for(lambda: self.num_calls >= num_calls, timeout=30)


def test_a_hundred_who_look_cause_no_further_read() -> None:
    readings = Readings()
    with Following(readings, pause_s=3600) as following:
        first = following.first_look()
        looks = [following.look() for _ in range(100)]
    assert first.value == 1
    assert {look.value for look in looks} == {1}
    assert readings.num_calls == 1


def test_while_nobody_looks_nothing_is_read_and_the_next_look_wakes_it() -> None:
    now = [0.0]
    readings = Readings()
    # A share of one: a read during which the clock jumps is no reason for a pause.
    with Following(readings, pause_s=0.0, share=1.0, ticks=lambda: now[0]) as following:
        following.first_look()
        now[0] = 31.0
        # One read may have been under way; after it none comes.
        seen = [readings.num_calls]
        while not following.is_idle():
            seen.append(readings.num_calls)
        idle = readings.num_calls
        assert following.is_idle()
        assert readings.num_calls == idle
        following.look()
        readings.wait_for(idle + 1)


def test_an_error_keeps_the_last_value_and_is_said_without_credentials() -> None:
    def read(number: int) -> int:
        if number > 1:
            raise Unavailable("store: https://me:secret@host/x?sig=secret does not answer\nmore")
        return number

    readings = Readings(read)
    with Following(readings, pause_s=0.0) as following:
        readings.wait_for(3)
        look = following.look()
    assert look.value == 1
    assert look.problem == "store: https://host/x does not answer"


def test_a_store_that_hangs_makes_nobody_wait_and_the_silence_is_counted() -> None:
    now, hangs = [0.0], threading.Event()

    def read(_number: int) -> int:
        hangs.wait(60)
        return 0

    readings = Readings(read)
    with Following(readings, pause_s=0.0, ticks=lambda: now[0]) as following:
        readings.wait_for(1)
        now[0] = 7.0
        look = following.look()
    hangs.set()
    assert (look.value, look.age_s, look.silent_s) == (None, None, 7.0)


@pytest.mark.parametrize(
    ("took_s", "share", "pauses_s"), [(1.0, 0.1, 9.0), (0.0, 0.1, 5.0), (20.0, 0.5, 20.0)]
)
def test_reading_takes_no_more_than_its_share_of_the_time(
    took_s: float, share: float, pauses_s: float
) -> None:
    assert Following(lambda: 0, pause_s=5.0, share=share).pause_after(took_s) == pytest.approx(pauses_s)
