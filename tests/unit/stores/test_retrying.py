"""How long a store that is away is waited for, told by a clock that only sleeping moves."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from checkpointing.stores.contract import Conflict, Denied, Full, Missing, StoreError, Unavailable, Undecided
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import RetryingStore, RetryLimits

PATIENCE = RetryLimits(budget_s=60, first_wait_s=1, longest_wait_s=8)


@dataclass
class Clock:
    now_s: float = 0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_s += wait_s


class AwayStore(MemoryStore):
    """Raises what ``failures`` gives, one per call, until they are used up. With ``lands`` it first obeys."""

    def __init__(self, failures: Iterator[StoreError], *, lands: bool = False) -> None:
        super().__init__()
        self._failures = failures
        self._lands = lands

    def create(self, name: str, data: bytes | memoryview) -> None:
        failure = next(self._failures, None)
        if failure is None or self._lands:
            super().create(name, data)
        if failure:
            raise failure

    def size(self, name: str) -> int:
        if failure := next(self._failures, None):
            raise failure
        return super().size(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        yield from super().list(prefix, after=after)
        if failure := next(self._failures, None):
            raise failure


def times(count: int, error: type[StoreError] = Unavailable) -> Iterator[StoreError]:
    return iter([error("store: away")] * count)


def patient(inner: MemoryStore, clock: Clock, spread: float = 1) -> RetryingStore:
    return RetryingStore(inner, PATIENCE, clock=clock, sleep=clock.sleep, spread=lambda: spread)


def test_a_store_that_comes_back_is_waited_for_with_waits_that_double_to_a_bound() -> None:
    clock, away = Clock(), AwayStore(times(6))
    patient(away, clock).create("a", b"1")
    assert away.get("a") == b"1"
    assert clock.waits == [1, 2, 4, 8, 8, 8]


def test_a_store_that_stays_away_is_given_up_within_the_budget() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match=r"^store: away \(tried 10 times\)$"):
        patient(AwayStore(times(1000)), clock).create("a", b"1")
    assert 50 < clock.now_s <= PATIENCE.budget_s


def test_for_who_waits_at_a_terminal_the_budget_counts_from_the_call_and_the_end_says_what_to_do() -> None:
    clock = Clock()

    class SlowlyAway(MemoryStore):
        def get(self, name: str) -> bytes:
            clock.now_s += 20
            raise Unavailable("store: away")

    patience = RetryLimits(budget_s=30, longest_wait_s=5, is_from_start=True, advice="--wait waits longer")
    store = RetryingStore(SlowlyAway(), patience, clock=clock, sleep=clock.sleep, spread=lambda: 1)
    with pytest.raises(Unavailable, match=r"^store: away \(tried 2 times; --wait waits longer\)$"):
        store.get("a")
    assert clock.now_s == 40.5


def test_the_budget_counts_from_the_first_failure_and_not_from_the_start() -> None:
    clock = Clock()

    class SlowStore(AwayStore):
        def create(self, name: str, data: bytes | memoryview) -> None:
            clock.now_s += 1000
            super().create(name, data)

    away = SlowStore(times(1))
    patient(away, clock).create("a", b"1")
    assert away.get("a") == b"1"


def test_those_who_failed_together_do_not_return_together() -> None:
    clocks = [Clock(), Clock()]
    for clock, spread in zip(clocks, (0.0, 0.5), strict=True):
        patient(AwayStore(times(2)), clock, spread).create("a", b"1")
    assert clocks[0].waits == [0.5, 1]
    assert clocks[1].waits == [0.75, 1.5]


def test_waiting_draws_none_of_the_random_numbers_that_a_training_draws() -> None:
    before, clock = random.getstate(), Clock()
    RetryingStore(AwayStore(times(2)), PATIENCE, clock=clock, sleep=clock.sleep).create("a", b"1")
    assert len(clock.waits) == 2
    assert random.getstate() == before


@pytest.mark.parametrize("error", [Full, Denied, StoreError])
def test_what_waiting_does_not_mend_is_told_at_once(error: type[StoreError]) -> None:
    clock = Clock()
    with pytest.raises(error):
        patient(AwayStore(times(1, error)), clock).create("a", b"1")
    assert clock.waits == []


@pytest.mark.parametrize("error", [Unavailable, Undecided, Conflict])
@pytest.mark.parametrize("lands", [False, True])
def test_a_create_that_was_answered_wrongly_ends_with_its_own_object(
    error: type[StoreError], lands: bool
) -> None:
    away = AwayStore(times(2, error), lands=lands)
    patient(away, Clock()).create("a", b"mine")
    assert away.get("a") == b"mine"


@pytest.mark.parametrize("error", [Unavailable, Undecided, Conflict])
def test_what_another_one_created_is_told_at_once_however_the_create_was_answered(
    error: type[StoreError],
) -> None:
    clock, away = Clock(), AwayStore(times(1, error))
    away.put("a", b"another's")
    with pytest.raises(Conflict, match=r"^store: memory:: a exists already$"):
        patient(away, clock).create("a", b"mine")
    assert len(clock.waits) == (error is not Conflict)
    assert away.get("a") == b"another's"


def test_what_is_refused_as_taken_and_never_there_is_given_up_as_undecided_and_not_as_anothers() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match=r"a was refused as taken, but is not there.*\(tried 10 times\)$"):
        patient(AwayStore(times(1000, Conflict)), clock).create("a", b"mine")
    assert 50 < clock.now_s <= PATIENCE.budget_s


@pytest.mark.parametrize(("error", "num_waits"), [(Undecided, 1), (Unavailable, 0)])
def test_a_probe_waits_for_an_answer_that_is_neither_yes_nor_no_and_for_nothing_else(
    error: type[StoreError], num_waits: int
) -> None:
    class Probed(MemoryStore):
        failures = times(1, error)

        def probe(self) -> None:
            if failure := next(self.failures, None):
                raise failure

    clock = Clock()
    with suppress(Unavailable):
        patient(Probed(), clock).probe()
    assert len(clock.waits) == num_waits


def test_a_list_that_broke_off_names_nothing_twice() -> None:
    away = AwayStore(times(2))
    for name in ("f/a", "f/b"):
        away.put(name, b"")
    assert sorted(patient(away, Clock()).list("f")) == ["f/a", "f/b"]


def test_a_size_is_waited_for_as_bytes_are_and_what_is_missing_is_told_at_once() -> None:
    clock, away = Clock(), AwayStore(times(2))
    away.put("a", b"123")
    assert patient(away, clock).size("a") == 3
    assert clock.waits == [1, 2]
    with pytest.raises(Missing):
        patient(away, clock).size("b")
    assert clock.waits == [1, 2]
