"""Answers that say "taken" and are wrong, at every call of a run's life: nothing told durable is lost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Commit, Lease
from checkpointing.log.log import Log
from checkpointing.stores.contract import Buffer, Conflict, Store, Unavailable, Undecided
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import RetryingStore, RetryLimits, Waiter
from tests.unit.small_generations import RUN, Ranks, generation, names

Answer = TypeVar("Answer")
TWO = Retention(last=2, best=0)


class ConflictedStore(MemoryStore):
    """Answers the calls numbered in ``at`` as a server does that has another request for the same name under
    way: refused, with the call's effect or without.
    """

    def __init__(self, *at: int, lands: bool = False) -> None:
        super().__init__()
        self.num_calls = 0
        self.at = at
        self.lands = lands

    def put(self, name: str, data: Buffer) -> None:
        self._call(lambda: MemoryStore.put(self, name, data), Undecided)

    def create(self, name: str, data: Buffer) -> None:
        self._call(lambda: MemoryStore.create(self, name, data), Conflict)

    def get(self, name: str) -> bytes:
        return self._call(lambda: MemoryStore.get(self, name), Undecided)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._call(lambda: MemoryStore.list(self, prefix, after=after), Undecided)

    def delete(self, name: str) -> None:
        self._call(lambda: MemoryStore.delete(self, name), Undecided)

    def _call(self, do: Callable[[], Answer], error: type[Undecided] | type[Conflict]) -> Answer:
        self.num_calls += 1
        if self.num_calls not in self.at:
            return do()
        if self.lands:
            do()
        raise error("store: 409 ConditionalRequestConflict")


@dataclass
class Clock:
    """Sleeping moves it and takes no time; what ``wakes`` does happens during the sleep."""

    wakes: Callable[[], object] = lambda: None
    now_s: float = 0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_s += wait_s
        self.wakes()


def waiter(clock: Clock) -> Waiter:
    return Waiter(RetryLimits(budget_s=60), clock=clock, sleep=clock.sleep, spread=lambda: 0.5)


def log_of(store: Store, clock: Clock | None = None) -> Log:
    return Log(store, RUN, waiter=waiter(clock or Clock()))


def live(store: Store) -> tuple[Repository, list[str]]:
    """Two attempts that save and retire; the steps that were told durable."""
    clock, told = Clock(), []
    patient = RetryingStore(store, RetryLimits(budget_s=60), clock=clock, sleep=clock.sleep)
    for owner, steps in (("first", (10, 20, 30)), ("second", (40,))):
        repository = Repository(patient, RUN)
        ranks = Ranks(repository, repository.take_over(owner), retention=TWO)
        told += [ranks.save(step) for step in steps]
    return repository, told


def test_one_refusal_at_any_call_of_a_runs_life_changes_nothing_of_it() -> None:
    calm = ConflictedStore()
    expected, _ = live(calm)
    kinds = [type(record.entry) for record in expected.records()]
    for at in range(1, calm.num_calls + 1):
        for lands in (False, True):
            store = ConflictedStore(at, lands=lands)
            repository, told = live(store)
            store.at = ()
            view = Repository(store, RUN).refresh()
            assert [type(record.entry) for record in repository.records()] == kinds, (at, lands)
            assert (view.term, view.num_lost, names(view.generations)) == (2, 0, told[-2:]), (at, lands)
            assert all(found.is_good for found in view.generations)
    assert calm.num_calls > 40


@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize("first", range(1, 8))
def test_two_refusals_in_a_row_leave_a_log_without_gaps(first: int, lands: bool) -> None:
    """Also of a store that nobody waits for but the log itself."""
    store = ConflictedStore()
    log = log_of(store)
    log.lease("before")
    store.at, store.lands = (store.num_calls + first, store.num_calls + first + 2), lands
    clock = Clock()
    log = log_of(RetryingStore(store, RetryLimits(budget_s=60), clock=clock, sleep=clock.sleep), clock)
    assert log.lease("me") == 2
    for number in (1, 2, 3):
        log.append(Commit(generation=generation(number)), term=2)
    assert [record.number for record in log.records()] == [1, 2, 3, 4, 5]
    assert (log.view.num_lost, log.view.owner) == (0, "me")


@pytest.mark.parametrize("lands", [False, True])
def test_a_number_that_is_refused_as_taken_and_is_not_there_is_no_attempt_of_somebody_else(
    lands: bool,
) -> None:
    store = ConflictedStore(lands=lands)
    log = log_of(store)
    assert log.lease("me") == 1
    store.at = (store.num_calls + 1,)
    log.append(Commit(generation=generation(1)), term=1)
    assert (log.number, log.view.term, log.view.num_lost) == (2, 1, 0)
    assert Log(store, RUN).read() == log.view


def test_a_driver_that_is_told_a_step_is_durable_is_seen_by_its_successor_or_fenced() -> None:
    """The new one's lease is refused without effect, and while it waits the old one commits its step."""
    for is_refused in (False, True):
        store = ConflictedStore()
        old = log_of(store)
        old.lease("old")
        told: list[str] = []

        def save(old: Log = old, told: list[str] = told) -> None:
            old.append(Commit(generation=generation(2)), term=1)
            told.append(generation(2).name)

        new = log_of(store, Clock(wakes=save))
        new.read()
        store.at = (store.num_calls + 1,) if is_refused else ()  # its next create
        assert new.append(Lease(owner="new")).term == 2
        if not is_refused:
            with pytest.raises(Fenced, match="new took the run over"):
                save()
        assert names(new.view.generations) == told == names(Log(store, RUN).read().generations)
        assert new.view.num_lost == 0


def test_a_refusal_that_stays_is_told_as_such_by_the_deadline_and_nothing_is_passed_over() -> None:
    clock, store = Clock(), ConflictedStore(*range(1, 2000, 2))  # each create, and not the look after it
    log = log_of(store, clock)
    with pytest.raises(Unavailable, match="was refused as taken, but is not there"):
        log.append(Lease(owner="me"))
    assert clock.now_s <= 60
    assert (log.number, list(MemoryStore.list(store, "runs"))) == (0, [])
