"""Whether a start may go on with the run of its name: refused beside a live driver, never after a crash."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import SpecError
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.resume_checks import check_unchanged, without_data
from jobs.spec_schema.run_spec import RunSpec
from tests.unit.small_generations import RUN, generation

SPEC = {"name": RUN, "model": "llama-tiny", "steps": 40}


@pytest.fixture
def repository() -> Repository:
    """A run with one generation, begun with ``SPEC``."""
    repository = Repository(MemoryStore(), RUN)
    term = repository.take_over("me")
    repository.append(Commit(generation=generation(1)), term=term)
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(described()).encode())
    return repository


def described(**changes: Any) -> dict[str, Any]:
    return RunSpec.model_validate({**SPEC, **changes}).model_dump(mode="json")


def test_the_same_spec_goes_on(repository: Repository) -> None:
    assert check_unchanged(repository, described(steps=80))


def test_another_seed_is_refused_with_both_values_and_the_place_to_go_on_from(repository: Repository) -> None:
    with pytest.raises(SpecError) as refused:
        check_unchanged(repository, described(seed=3))
    seed, other_ways = refused.value.problems
    assert seed == f"seed: the run {RUN} has 0, this spec 3; put it back (--set seed=0)"
    assert f"--resume {repository.store.url}/runs/{RUN}" in other_ways


def test_a_run_that_has_saved_nothing_yet_may_become_another() -> None:
    repository = Repository(MemoryStore(), RUN)
    assert check_unchanged(repository, described(seed=3))
    repository.take_over("me")
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(described()).encode())
    assert check_unchanged(repository, described(steps=80))
    assert not check_unchanged(repository, described(seed=3)), "what lies on disks is another's"


def test_a_run_begun_afresh_that_has_saved_nothing_since_may_become_another(repository: Repository) -> None:
    repository.take_over("me", fresh=True)
    assert not check_unchanged(repository, described(seed=3))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_damaged_spec_of_the_run_refuses_nobody(text: str, repository: Repository) -> None:
    repository.store.put(f"runs/{RUN}/spec.json", text.encode())
    assert check_unchanged(repository, described(seed=3))


def test_of_a_finished_run_all_is_compared_but_its_data(repository: Repository) -> None:
    other_data = {"data": {"samples": 7}}
    check_unchanged(repository, without_data(described(**other_data)))
    with pytest.raises(SpecError, match=r"^seed: "):
        check_unchanged(repository, without_data(described(seed=3, **other_data)))


class Driver:
    """Another one of the run, as it shows in the store."""

    def __init__(self, store: MemoryStore, name: str | None = "other") -> None:
        self._store = store
        self._word: dict[str, Any] = {"stage": "training", "step": 12, "told_s": 0.0}
        self._word |= {"driver": name} if name else {}

    def says(self, **changes: Any) -> None:
        self._word = {**self._word, "told_s": self._word["told_s"] + 1.0, **changes}
        self._store.put(f"runs/{RUN}/status.json", json.dumps(self._word).encode())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def driver(store: MemoryStore) -> Driver:
    """One that has said something already."""
    driver = Driver(store)
    driver.says()
    return driver


@pytest.fixture
def start(store: MemoryStore) -> Callable[..., DriverPresence]:
    """Has looked once; whether it looks again is the test's to say."""

    def begin(pause: Callable[[float], None] = lambda _: None, **options: Any) -> DriverPresence:
        presence = DriverPresence(store, RUN, pause=pause, **options)
        presence.look()
        return presence

    return begin


Start = Callable[..., DriverPresence]


def test_nobody_is_refused_where_no_driver_ever_was(start: Start) -> None:
    start().refuse()


def test_a_driver_that_was_at_work_is_listened_for_however_fast_this_one_starts(
    driver: Driver, start: Start
) -> None:
    presence = start(pause=lambda _: driver.says())
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_one_that_died_refuses_nobody_and_costs_ten_seconds_at_most(driver: Driver, start: Start) -> None:
    paused: list[float] = []
    start(pause=paused.append).refuse()
    assert paused == [1.0] * 10
    late = start(pause=fail)
    for _ in range(10):
        late.look()
    late.refuse()


@pytest.mark.parametrize("stage", ["stopped", "failed", "finished"])
def test_one_that_had_ended_costs_no_time(stage: str, driver: Driver, start: Start) -> None:
    driver.says(stage=stage)
    start(pause=fail).refuse()


def test_while_another_one_may_speak_this_one_does_not(driver: Driver, start: Start) -> None:
    """They write to one file, and a word that is written over at once is not heard."""
    presence = start()
    for _ in range(10):
        assert not presence.may_speak()
        presence.look()
    assert presence.may_speak()
    driver.says()
    assert not presence.may_speak()
    presence.refuse()
    driver.says()
    assert presence.may_speak()


def test_a_word_that_is_heard_before_this_driver_speaks_counts(
    driver: Driver, store: MemoryStore, start: Start
) -> None:
    """Each time this one looks it sees its own word, written over the other one's."""

    def both_speak() -> None:
        driver.says()
        if presence.may_speak():
            own.says()

    presence = start(pause=lambda _: both_speak())
    own = Driver(store, presence.own)
    for _ in range(10):
        presence.look()
    own.says()
    both_speak()
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_one_whose_words_come_slowly_is_heard(driver: Driver, start: Start) -> None:
    paused: list[float] = []

    def pause(for_s: float) -> None:
        paused.append(for_s)
        if len(paused) % 9 == 0:
            driver.says()

    with pytest.raises(SpecError, match="another driver"):
        start(pause=pause).refuse()
    assert len(paused) == 18


def test_a_store_that_is_away_does_not_tell_and_is_asked_again(
    driver: Driver, store: MemoryStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = start(pause=lambda _: driver.says())

    def away(_name: str) -> bytes:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", away)
        with pytest.raises(Unavailable):
            presence.refuse()
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_where_no_look_succeeded_yet_one_must(driver: Driver, store: MemoryStore) -> None:
    presence = DriverPresence(store, RUN, pause=lambda _: driver.says())
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_the_last_word_of_a_dead_driver_may_still_come(driver: Driver, start: Start) -> None:
    paused: list[float] = []
    presence = start(pause=paused.append)
    driver.says(step=13)
    presence.look()
    presence.refuse()
    assert len(paused) == 10


def test_a_driver_that_goes_on_speaking_is_not_pushed_aside(driver: Driver, start: Start) -> None:
    presence = start(pause=lambda _: driver.says(step=14))
    driver.says(step=13)
    presence.look()
    with pytest.raises(
        SpecError, match=rf"^{RUN}: another driver is at work on it, at step 14; stop it first"
    ):
        presence.refuse()


def test_one_of_an_older_version_that_does_not_say_who_it_is_counts_too(
    store: MemoryStore, start: Start
) -> None:
    old = Driver(store, None)
    old.says()
    presence = start(pause=lambda _: old.says())
    for _ in range(2):
        old.says()
        presence.look()
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


@pytest.mark.parametrize("stage", ["starting", "waiting"])
def test_who_waits_for_room_as_this_one_does_is_no_rival(stage: str, driver: Driver, start: Start) -> None:
    driver.says(stage=stage, has_lease=False)
    presence = start(pause=fail)
    for _ in range(3):
        driver.says(has_lease=False)
        presence.look()
    presence.refuse()


def test_who_has_the_lease_and_waits_for_its_next_attempt_is_one(driver: Driver, start: Start) -> None:
    presence = start(pause=lambda _: driver.says())
    driver.says(stage="waiting", has_lease=True)
    presence.look()
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_who_died_while_this_one_waited_for_room_is_no_rival(driver: Driver, start: Start) -> None:
    paused: list[float] = []
    presence = start(pause=paused.append)
    for _ in range(5):
        driver.says()
        presence.look()
    presence.refuse()
    assert len(paused) == 10


def test_what_this_driver_says_itself_is_no_rival(store: MemoryStore, start: Start) -> None:
    presence = start(pause=fail)
    own = Driver(store, presence.own)
    for _ in range(5):
        own.says()
        presence.look()
    presence.refuse()


def test_a_driver_that_ends_while_this_one_starts_is_no_rival(driver: Driver, start: Start) -> None:
    paused: list[float] = []
    presence = start(pause=paused.append)
    for stage in ("stopped", "failed"):
        driver.says(stage=stage)
        presence.look()
    presence.refuse()
    assert len(paused) == 8


def test_the_last_word_of_one_that_was_taken_over_is_not_that_of_who_took_over(
    driver: Driver, store: MemoryStore, start: Start
) -> None:
    presence = start(pause=lambda _: driver.says())
    Driver(store, "taken over").says(stage="failed")
    presence.look()
    with pytest.raises(SpecError, match="another driver"):
        presence.refuse()


def test_it_looks_by_itself_from_its_first_moment_on() -> None:
    """What it hears so is covered by its own word when it is asked."""
    store = Watched()
    driver = Driver(store)
    with DriverPresence(store, RUN, pause=lambda _: driver.says()) as presence:
        store.await_look()
        driver.says()
        store.await_look()
        Driver(store, presence.own).says()
        assert not presence.may_speak()
        with pytest.raises(SpecError, match="another driver"):
            presence.refuse()


class Watched(MemoryStore):
    """Tells when somebody has looked."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = threading.Semaphore(0)

    def get(self, name: str) -> bytes:
        try:
            return super().get(name)
        finally:
            self._looks.release()

    def await_look(self) -> None:
        assert self._looks.acquire(timeout=60), "nobody looks"


def test_who_takes_over_asks_nobody(driver: Driver, start: Start) -> None:
    presence = start(is_wanted=False, pause=fail)
    for _ in range(3):
        driver.says()
        presence.look()
    presence.refuse()


def test_it_is_asked_once_and_then_the_run_is_this_drivers(driver: Driver, start: Start) -> None:
    paused: list[float] = []
    presence = start(pause=paused.append)
    presence.refuse()
    for _ in range(3):
        driver.says()
        presence.look()
    presence.refuse()
    assert len(paused) == 10


def fail(_for_s: float) -> None:
    raise AssertionError("it waits, though nobody has spoken")
