"""Whether a driver is there follows from whether its words change; and how often a status asks its store."""

import json
import threading
from collections.abc import Callable
from functools import partial

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Finish
from checkpointing.stores.memory import MemoryStore
from jobs.listing.names import find
from jobs.listing.reading import read
from jobs.run_progress.status_file import read_status_file
from jobs.runs import status as status_command
from jobs.runs.listening import Ear, Report, listen
from jobs.runs.status import status_of
from jobs.watching.runs import RunReading
from tests.faults import Answer, FaultyStore
from tests.unit.small_generations import RUN, Ranks

HOUR_S = 3600.0
NOW_S = 1_000_000.0


def tell(store: MemoryStore, run: str = RUN, *, told_s: float = NOW_S, step: int = 1) -> None:
    body = {"stage": "training", "attempt": 1, "told_s": told_s, "step": step}
    store.put(f"runs/{run}/status.json", json.dumps(body).encode())


def begun(store: MemoryStore, run: str = RUN) -> None:
    Repository(store, run).take_over("me")


def stage_of(store: MemoryStore, pause: Callable[[float], None]) -> object:
    hears = partial(listen, store, RUN, pause=pause)
    return status_of(store, RUN, clock=lambda: NOW_S, hears=hears)["stage"]


@pytest.mark.parametrize("ahead_s", [-HOUR_S, 0.0, HOUR_S])
def test_a_driver_is_there_if_its_words_change_whatever_its_clock_says(ahead_s: float) -> None:
    store = MemoryStore()
    begun(store)
    tell(store, told_s=NOW_S + ahead_s)
    assert stage_of(store, lambda _: tell(store, told_s=NOW_S + ahead_s, step=2)) == "training"
    waits: list[float] = []
    assert stage_of(store, waits.append) == "silent"
    assert sum(waits) == 10.0


def test_the_newest_word_is_what_is_told() -> None:
    store = MemoryStore()
    begun(store)
    tell(store)
    hears = partial(listen, store, RUN, pause=lambda _: tell(store, step=7))
    assert status_of(store, RUN, hears=hears)["step"] == 7


def test_a_driver_that_ended_is_not_listened_for() -> None:
    store = MemoryStore()
    begun(store)
    store.put(f"runs/{RUN}/status.json", b'{"stage": "failed", "attempt": 1, "told_s": 0.0}')

    def fail(_report: object) -> None:
        raise AssertionError("nobody is there to be heard")

    assert status_of(store, RUN, hears=fail)["stage"] == "failed"


def test_of_a_run_that_is_finished_nobody_listens_for_its_driver_whatever_it_wrote_last() -> None:
    """A driver with no step left to do ends before it has written more than that it starts."""
    store, waits = MemoryStore(), list[float]()
    begun(store)
    tell(store)
    repository = Repository(store, RUN)
    repository.append(Finish(step=3), term=repository.refresh().term)
    assert stage_of(store, waits.append) == "finished"
    [line] = read(store, find(store), lambda: NOW_S, pause=waits.append).runs
    assert (line.state, waits) == ("finished", [])
    repository.take_over("goes on, with more steps")
    assert stage_of(store, waits.append) == "silent"
    assert sum(waits) == 10.0


def test_the_command_says_how_long_it_listened(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"stage": "silent", "why": None}
    assert status_command.state_text(found) == "no new word of it within 10 s, its driver may be gone"


def test_who_looks_on_calls_a_driver_silent_by_its_own_clock_alone() -> None:
    store, now = MemoryStore(), [0.0]
    begun(store)
    tell(store, told_s=NOW_S - HOUR_S)
    reading = RunReading(store, RUN, clock=lambda: NOW_S, ticks=lambda: now[0])
    assert reading.status()["stage"] == "training"
    now[0] = 31.0
    assert reading.status()["stage"] == "silent"
    tell(store, told_s=NOW_S - HOUR_S, step=2)
    assert reading.status()["stage"] == "training"


def test_an_ear_forgets_no_time_between_two_equal_words() -> None:
    now = [0.0]
    ear = Ear(ticks=lambda: now[0])
    assert ear.hears({"step": 1})
    now[0] = 30.0
    assert ear.hears({"step": 1})
    now[0] = 30.1
    assert not ear.hears({"step": 1})


def test_a_list_of_runs_listens_for_all_drivers_together() -> None:
    store, waits = MemoryStore(), []
    for run in ("alive", "dead", "gone"):
        begun(store, run)
        tell(store, run, told_s=NOW_S - HOUR_S)

    def pause(wait_s: float) -> None:
        waits.append(wait_s)
        tell(store, "alive", told_s=NOW_S - HOUR_S, step=1 + len(waits))

    listed = read(store, find(store), lambda: NOW_S, pause=pause)
    states = {line.run: line.state for line in listed.runs}
    silent = "no new word of it within 10 s, its driver may be gone"
    assert states == {"alive": "training", "dead": silent, "gone": silent}
    assert sum(waits) == 10.0


def test_a_list_without_drivers_waits_for_nobody() -> None:
    store = MemoryStore()
    begun(store)

    def fail(_wait_s: float) -> None:
        raise AssertionError("nobody is there to be heard")

    assert [line.state for line in read(store, find(store), lambda: NOW_S, pause=fail).runs] == [
        "not finished"
    ]


class CountingStore(FaultyStore):
    """Knows which thread asked what."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked: dict[str, list[str]] = {}

    def _call(self, what: str, do: Callable[[], Answer]) -> Answer:
        self.asked.setdefault(threading.current_thread().name, []).append(what)
        return super()._call(what, do)


@pytest.mark.parametrize("num_saves", [0, 3])
def test_a_status_takes_at_most_five_round_trips_beside_what_the_run_has_recorded(num_saves: int) -> None:
    store = CountingStore()
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    for number in range(num_saves):
        ranks.save(10 * (number + 1))
    tell(store.inner)  # type: ignore[arg-type]  # the MemoryStore that it was made of
    store.asked.clear()

    def second_look(_report: Report) -> Report | None:
        return read_status_file(store, RUN)

    assert status_of(store, RUN, hears=second_look)["stage"] == "training"
    main = store.asked.pop("MainThread")
    beside = [what for asked in store.asked.values() for what in asked]
    log = [what for what in beside if "/log" in what or "/hint" in what]
    status = [what for what in beside if "/status" in what]
    assert (len(status), len(log), len(main)) == (1, 3, 2)
    assert max(len(status), len(log)) + len(main) <= 5
