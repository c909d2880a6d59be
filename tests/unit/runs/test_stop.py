"""``longhaul stop``: whom it asks, how long it waits, and what it says of where the run ended."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Entry, Finish, Lease, Stop, Stopped
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.cli.arguments import longhaul_parser
from jobs.runs.resume_command import job_variables, note_stop, resume_command
from jobs.runs.stop import StopOutcome, stop_run
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.stop_request import StopRequest
from tests.unit.printed import checked
from tests.unit.small_generations import generation

RUN = "r"
WAIT_S = 100.0

Deed = Callable[[], object]


class Play:
    """A clock that is told the time, and what the others do each time that somebody sleeps."""

    def __init__(self, deeds: Iterable[Deed] = ()) -> None:
        self.now = 0.0
        self._deeds = iter(deeds)

    def ticks(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self._deeds, lambda: None)()


class AwayStore(MemoryStore):
    """Can't be listed while it ``is_away``."""

    is_away = False

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        if self.is_away:
            raise Unavailable("the store is away")
        return super().list(prefix, after=after)


@pytest.fixture
def driver() -> Repository:
    """Of a run with a first attempt and one checkpoint, of step 10."""
    repository = Repository(AwayStore(), RUN)
    term = repository.take_over("driver")
    repository.append(Commit(generation=generation(1)), term=term)
    return repository


def tell(driver: Repository, **told: object) -> Deed:
    return lambda: driver.store.put(f"runs/{RUN}/status.json", json.dumps(told).encode())


def append(driver: Repository, *entries: Entry) -> Deed:
    return lambda: [driver.append(entry) for entry in entries]


def asked(
    driver: Repository, play: Play, wait_s: float = WAIT_S, said: list[str] | None = None
) -> StopOutcome:
    say = (said if said is not None else []).append
    return stop_run(driver.store, RUN, wait_s, say, ticks=play.ticks, sleep=play.sleep)


def stops(driver: Repository) -> list[int]:
    """The terms of the attempts that were asked to stop."""
    return [record.view.term for record in driver.records() if isinstance(record.entry, Stop)]


def test_it_asks_the_present_attempt_once_and_waits_until_that_has_stopped(driver: Repository) -> None:
    last_save = Commit(generation=generation(2))
    play = Play([tell(driver, step=15), append(driver, last_save, Stopped(step=20, why="longhaul stop"))])
    said: list[str] = []
    outcome = asked(driver, play, said=said)
    assert outcome == StopOutcome(
        run=RUN,
        state="stopped",
        attempt=1,
        step=20,
        generation=generation(2).name,
        generation_step=20,
    )
    assert (stops(driver), said) == ([1], ["r: asked attempt 1 to save and end"])


@pytest.mark.parametrize(
    ("entry", "state", "step"),
    [(Finish(step=40), "finished", 40), (Stopped(step=10, why="Ctrl-C"), "stopped", 10)],
)
def test_of_a_run_that_has_ended_nobody_is_asked(
    entry: Entry, state: str, step: int, driver: Repository
) -> None:
    driver.append(entry)
    outcome = asked(driver, Play())
    assert (outcome.state, outcome.step, stops(driver)) == (state, step, [])


def test_a_run_that_finishes_before_it_hears_is_finished(driver: Repository) -> None:
    outcome = asked(driver, Play([append(driver, Finish(step=40))]))
    assert (outcome.state, outcome.step) == ("finished", 40)


def test_an_attempt_that_begins_meanwhile_is_asked_as_well(driver: Repository) -> None:
    begins = append(driver, Lease(owner="another"))
    play = Play([begins, tell(driver, step=1), append(driver, Stopped(step=10, why="longhaul stop"))])
    said: list[str] = []
    assert asked(driver, play, said=said).attempt == 2
    assert stops(driver) == [1, 2]
    assert said == [f"r: asked attempt {number} to save and end" for number in (1, 2)]


def test_a_start_after_nobody_is_waiting_any_more_is_not_stopped(driver: Repository) -> None:
    assert asked(driver, Play(), wait_s=0).state == "asked"
    driver.append(Lease(owner="later"))
    assert not driver.view.stop_asked


def test_two_that_wish_the_same_both_hear_of_the_end(driver: Repository) -> None:
    others: list[StopOutcome] = []

    def another() -> None:
        play = Play([append(driver, Stopped(step=10, why="longhaul stop"))])
        others.append(asked(driver, play))

    outcome = asked(driver, Play([another]))
    assert [outcome] == others
    assert outcome.state == "stopped"


def test_whose_driver_tells_nothing_any_more_is_not_running(driver: Repository) -> None:
    tell(driver, told_s=1.0, stage="training", attempt=1)()
    play = Play()
    assert asked(driver, play).state == "not running"
    assert 30 <= play.now < 40


@pytest.mark.parametrize("stage", ["failed", "given up", "interrupted"])
def test_whose_driver_said_that_it_gave_up_is_not_running_at_once(stage: str, driver: Repository) -> None:
    tell(driver, stage=stage, attempt=1)()
    play = Play()
    assert asked(driver, play).state == "not running"
    assert play.now == 0


def test_what_an_earlier_attempt_said_of_its_end_says_nothing_of_this_one(driver: Repository) -> None:
    tell(driver, stage="failed", attempt=1)()
    driver.append(Lease(owner="another"))
    assert asked(driver, Play([append(driver, Stopped(step=10, why="longhaul stop"))])).state == "stopped"


def test_a_driver_that_is_alive_and_does_not_stop_is_waited_for_no_longer_than_was_said(
    driver: Repository,
) -> None:
    play = Play(tell(driver, told_s=number) for number in range(1000))
    assert asked(driver, play, wait_s=WAIT_S).state == "asked"
    assert play.now == WAIT_S


def test_an_outage_of_the_store_is_waited_out(driver: Repository) -> None:
    store = driver.store
    assert isinstance(store, AwayStore)
    leaves = (lambda: setattr(store, "is_away", True), lambda: setattr(store, "is_away", False))
    play = Play([*leaves, append(driver, Stopped(step=10, why="longhaul stop"))])
    assert asked(driver, play).state == "stopped"


def test_a_run_that_is_not_there_is_an_error_and_none_is_made() -> None:
    store = MemoryStore()
    with pytest.raises(NothingToResume, match="there is no run 'r'; expected the name of one"):
        stop_run(store, RUN, WAIT_S, lambda _: None)
    assert list(store.list("runs")) == []


def test_what_stops_while_nothing_goes_on_ends_at_its_newest_checkpoint(driver: Repository) -> None:
    stop_request = StopRequest(aim="stop", why="Ctrl-C")
    ended = note_stop(driver, 1, stop_request)
    assert (ended.step, ended.generation, ended.stop_request) == (10, generation(1).name, stop_request)
    assert driver.refresh().stopped_step == 10
    driver.append(Lease(owner="another"))
    note_stop(driver, 1, stop_request)
    assert driver.refresh().stopped_step is None


def test_a_store_that_falls_silent_keeps_nobody_from_stopping(
    driver: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who notes it is left behind, and ends with the test."""
    is_over = threading.Event()
    monkeypatch.setattr("jobs.runs.resume_command._NOTE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(driver.store, "create", lambda *_: is_over.wait())
    ended = note_stop(driver, 1, StopRequest(aim="stop", why="SIGTERM"))
    is_over.set()
    assert ended.step == 10


def at(tmp_path: Path, *entries: Entry) -> tuple[str, ...]:
    repository = Repository(LocalStore(tmp_path), RUN)
    repository.take_over("driver")
    for entry in entries:
        repository.append(entry)
    return ("stop", RUN, "--store", str(tmp_path))


STOPPED = Stopped(step=20, why="SIGTERM")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (
            [Commit(generation=generation(2)), STOPPED],
            f"r: stopped at step 20, its newest checkpoint is {generation(2).name}; the command that "
            "trained it goes on",
        ),
        (
            [Commit(generation=generation(1)), STOPPED],
            f"r: stopped at step 20, its newest checkpoint of step 10 is {generation(1).name}; the command "
            "that trained it goes on",
        ),
        ([STOPPED], "r: stopped at step 20, without a checkpoint; the command that trained it goes on"),
        ([Finish(step=40)], "r: finished at step 40, nothing to stop"),
    ],
)
def test_people_read_where_it_ended(
    entries: list[Entry], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*at(tmp_path, *entries)]) == 0
    assert capsys.readouterr().out.splitlines() == [expected]


def test_programs_read_the_same_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*at(tmp_path), "--wait", "0", "--json"]) == 0
    told: dict[str, Any] = checked("stop", capsys.readouterr().out)
    assert (told["state"], told["attempt"], told["step"], told["generation"]) == ("asked", 1, None, None)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "there is no run 'nobody'"),
        (("--store", "ftp://x"), "ftp:// is no kind of store"),
        (("--wait", "soon"), "'soon' is no number of seconds, such as 60"),
        (("--wait", "-1"), "'-1' is no number of seconds, such as 60"),
    ],
)
def test_bad_input_ends_with_2_and_says_what_to_do(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["stop", "nobody", "--store", str(tmp_path), *flags]
    try:
        code: object = main(command)
    except SystemExit as exit:
        code = exit.code
    assert (code, says in capsys.readouterr().err) == (2, True)


def test_the_command_that_goes_on_is_the_one_that_began(driver: Repository) -> None:
    flags = "--store s --set steps=8 --set a.b={c: 1} --run x --executor inline"
    words = [*flags.replace("{c: 1}", "{c:_1}").split(), "--json", "-v"]
    assert command_after(driver, *(word.replace(":_", ": ") for word in words)) == (
        "longhaul train spec.yaml --store s --run x --executor inline --set steps=8 --set 'a.b={c: 1}'"
    )


def test_the_command_that_goes_on_under_torchrun_is_one_of_torchrun(
    driver: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert command_after(driver, "--run", "x") == (
        "torchrun --standalone --nproc_per_node=8 -m -- jobs.cli train spec.yaml --run x"
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert command_after(driver, "--run", "x") == (
        "torchrun --nnodes=2 --rdzv_endpoint=HOST:PORT --nproc_per_node=4 -m -- jobs.cli train spec.yaml "
        "--run x"
    )


def test_the_command_that_goes_on_repeats_no_secret(driver: Repository) -> None:
    words = ("--set", "environment.API_KEY=hunter2", "--set", "environment.NCCL_DEBUG=WARN")
    words += ("--set", "environment={API_KEY: hunter2}", "--set", "environment.API_KEY=@key")
    assert command_after(driver, *words) == (
        "longhaul train spec.yaml --set 'environment.API_KEY=<redacted>' --set environment.NCCL_DEBUG=WARN "
        "--set 'environment=<redacted>' --set environment.API_KEY=@key"
    )


def command_after(driver: Repository, *flags: str) -> str:
    """What is to be run after a driver whose first attempt has, or would have had, the term 2."""
    args = longhaul_parser().parse_args(["train", "spec.yaml", *flags])
    return resume_command(args, Repository(driver.store, RUN), term=2)


@pytest.mark.parametrize("what", ["step:10", "s3://b/runs/another"])
def test_the_command_that_goes_on_begins_elsewhere_until_something_is_saved_there(
    what: str, driver: Repository
) -> None:
    as_asked = f"longhaul train spec.yaml --resume {what}"
    assert command_after(driver, "--resume", what) == as_asked
    term = driver.take_over("driver")
    assert command_after(driver, "--resume", what) == as_asked
    driver.append(Commit(generation=generation(2, term=term)), term=term)
    assert command_after(driver, "--resume", what) == "longhaul train spec.yaml"


def test_the_command_that_goes_on_begins_afresh_until_a_new_life_has_begun(driver: Repository) -> None:
    assert command_after(driver, "--fresh") == "longhaul train spec.yaml --fresh"
    driver.take_over("driver", fresh=True)
    assert command_after(driver, "--fresh") == "longhaul train spec.yaml"


def test_a_store_that_is_away_keeps_nobody_from_the_command_that_goes_on(driver: Repository) -> None:
    assert isinstance(driver.store, AwayStore)
    driver.store.is_away = True
    assert command_after(driver) == "longhaul train spec.yaml"


@pytest.mark.parametrize("deadline_s", [0.5, 600.0, 7200.0])
def test_a_job_is_given_the_time_that_its_last_save_may_take(deadline_s: float) -> None:
    """Waits for what is on its way, a cut, and the wait for that: three deadlines, one, and three."""
    assert int(job_variables(deadline_s)["RAY_JOB_STOP_WAIT_TIME_S"]) > 7 * deadline_s


@pytest.mark.parametrize("page", ["stop", "operations"])
def test_who_submits_by_hand_is_told_the_time_that_the_default_deadline_takes(page: str) -> None:
    spec = RunSpec.model_validate({"name": RUN, "model": "llama-tiny", "steps": 1})
    wait_s = job_variables(spec.checkpoint.deadline_s)["RAY_JOB_STOP_WAIT_TIME_S"]
    text = (Path(__file__).resolve().parents[3] / f"docs/{page}.md").read_text()
    assert f'"RAY_JOB_STOP_WAIT_TIME_S": "{wait_s}"' in text
