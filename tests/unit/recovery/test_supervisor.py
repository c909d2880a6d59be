"""When a supervisor starts a run's driver again, and when it leaves it at that; drivers here are scripts."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Finish, LogView, Stopped
from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from cluster.inventory import ClusterError
from jobs.cli.arguments import train_parser
from jobs.commandline.usage_error import Occupied, SpecError
from jobs.execution.outcomes import GivenUp, StoreAway, crashed
from jobs.recovery.journal import AttemptNote, given_up, leave_note, read_newest
from jobs.recovery.policy import FailedAttempt, Policy
from jobs.runs.driver_process import EXIT_GIVEN_UP, EXIT_NO_CLUSTER, EXIT_OCCUPIED, Away, DriverEnd
from jobs.runs.stop_signals import StopSignals
from jobs.runs.supervisor import Supervisor, keep_running
from jobs.runs.train import RunFailed, exit_code
from jobs.training.task.stop_request import StopRequest
from tests.unit.small_generations import generation

KILLED = DriverEnd(code=None, why="the driver was ended by SIGKILL")
SIGTERM = StopRequest(aim="stop", why="SIGTERM")


@dataclass
class Scripted:
    """Ends when it is looked at, or when it is asked to where it ``waits``."""

    how: DriverEnd
    waits: bool = False
    stop_requests: list[StopRequest] = field(default_factory=list)
    # For how long it was not seen, look for look; it is at work meanwhile.
    unseen: list[float] = field(default_factory=list)

    def end(self) -> DriverEnd | None:
        return None if self.unseen or (self.waits and not self.stop_requests) else self.how

    def unseen_s(self) -> float:
        return self.unseen.pop(0) if self.unseen else 0.0

    def stop(self, stop_request: StopRequest) -> None:
        self.stop_requests.append(stop_request)

    def kill(self) -> None: ...


Act = Callable[[Repository], "DriverEnd | Scripted"]


class Stage:
    """A supervisor of the run ``r`` whose drivers do what ``acts`` say, one each."""

    def __init__(self, *acts: Act | Scripted, flags: str = "", store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.repository = Repository(self.store, "r")
        self.acts = list(acts)
        self.started: list[list[str]] = []
        self.pauses: list[float] = []
        self.calls: list[tuple[str, str, int, int]] = []
        self.stop_signals = StopSignals()
        self.flags = flags
        self.in_pause: Callable[[], None] = lambda: None

    def keep(self) -> int:
        supervisor = Supervisor(
            self.repository,
            self._start,
            Policy(),
            self.stop_signals,
            lambda alarm, attempt: self.calls.append((alarm.kind, alarm.text, alarm.step, attempt)),
            clock=lambda: 1000.0 + sum(self.pauses),
            pause=self._pause,
            look_every_s=0.0,
        )
        return supervisor.keep(arguments(self.flags))

    def _pause(self, for_s: float) -> StopRequest | None:
        self.pauses.append(for_s)
        self.in_pause()
        return self.stop_signals.stop_request()

    def _start(self, words: list[str]) -> Scripted:
        assert "--kept" in words
        self.started.append([word for word in words if word != "--kept"])
        act = self.acts.pop(0)
        found = act if isinstance(act, Scripted) else act(Repository(self.store, "r"))
        return found if isinstance(found, Scripted) else Scripted(found)


def arguments(flags: str) -> argparse.Namespace:
    return train_parser("longhaul train").parse_args(["spec.yaml", "--store", "/s", *flags.split()])


def leases_and_dies(repository: Repository) -> DriverEnd:
    repository.take_over("a driver")
    return KILLED


def leases_and_waits(repository: Repository) -> Scripted:
    """Until it is asked to stop; then it is killed."""
    repository.take_over("a driver")
    return Scripted(KILLED, waits=True)


def finishes(repository: Repository) -> DriverEnd:
    repository.append(Finish(step=9), term=repository.take_over("a driver"))
    return DriverEnd(code=0, why="")


def gives_up(repository: Repository) -> DriverEnd:
    term = repository.take_over("a driver")
    ending = FailedAttempt(term=term, cause="error", reason="boom", ended_s=0.0)
    leave_note(repository.store, "r", AttemptNote(term=term, how="given up", ending=ending, given_up="twice"))
    return DriverEnd(code=1, why="")


def ends_with(code: int) -> Act:
    return lambda _repository: DriverEnd(code=code, why=f"the driver ended with exit code {code}")


def test_a_driver_that_was_killed_is_started_again_until_the_run_is_finished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(leases_and_dies, leases_and_dies, finishes)
    assert stage.keep() == 0
    assert stage.pauses == [0, 1]
    assert "r: the driver was ended by SIGKILL; starting it again in 0 s" in capsys.readouterr().err


def test_a_driver_that_died_after_the_run_had_stopped_is_not_started_again() -> None:
    def stops_and_dies(repository: Repository) -> DriverEnd:
        stops(repository)
        return KILLED

    stage = Stage(stops_and_dies)
    assert stage.keep() == 0
    assert len(stage.started) == 1


@pytest.mark.parametrize("end", [KILLED, DriverEnd(code=1, why=""), DriverEnd(code=2, why="")])
@pytest.mark.parametrize("next_code", [0, 2])
def test_what_is_left_to_do_of_a_finished_run_is_the_next_drivers_and_so_is_the_exit_code(
    end: DriverEnd, next_code: int
) -> None:
    def finishes_and_exports_nothing(repository: Repository) -> DriverEnd:
        finishes(repository)
        return end

    stage = Stage(finishes_and_exports_nothing, ends_with(next_code))
    assert stage.keep() == next_code
    assert len(stage.started) == 2


def test_a_driver_that_is_killed_while_it_saves_as_asked_has_not_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(leases_and_waits)
    stage.stop_signals.hear(SIGTERM)
    assert stage.keep() == 1
    assert stage.repository.refresh().stopped_step is None
    assert capsys.readouterr().err.splitlines()[-1] == (
        "longhaul train: the driver was ended by SIGKILL before its last step was saved; there is no "
        "checkpoint; running it again goes on"
    )


def test_a_run_that_was_given_up_stays_given_up() -> None:
    stage = Stage(leases_and_dies, gives_up)
    assert stage.keep() == 1
    assert len(stage.started) == 2
    # Its driver was the one to tell.
    assert stage.calls == []


@pytest.mark.parametrize(
    ("error", "to_a_supervisor", "to_a_user"),
    [
        (Occupied(["r: another driver is at work on it"]), EXIT_OCCUPIED, 2),
        (RunFailed(GivenUp(why="too often", cause="boom")), EXIT_GIVEN_UP, 1),
        (RunFailed(crashed("boom", "error")), 1, 1),
        (RunFailed(StoreAway(reason="s3://bucket: gone")), 1, 1),
        (Fenced("a later attempt has taken r over"), 1, 1),
        (ClusterError("group: there is no group 'amd'"), EXIT_NO_CLUSTER, 2),
        (SpecError(["steps: 0"]), 2, 2),
        (Unavailable("s3://bucket: gone"), 1, 1),
    ],
)
def test_a_driver_tells_its_supervisor_more_than_a_user(
    error: Exception, to_a_supervisor: int, to_a_user: int
) -> None:
    assert exit_code(error, is_kept=True) == to_a_supervisor
    assert exit_code(error, is_kept=False) == to_a_user


def test_a_driver_that_gave_up_without_an_attempt_of_its_own_has_given_up() -> None:
    """As one that found no room. Its command was its to call."""
    stage = Stage(leases_and_dies, ends_with(EXIT_GIVEN_UP))
    assert stage.keep() == 1
    assert (len(stage.started), stage.calls) == (2, [])


def test_that_a_run_was_given_up_before_is_no_reason_to_keep_it_no_longer() -> None:
    given_up_before = Stage(gives_up)
    assert given_up_before.keep() == 1
    stage = Stage(ends_with(1), leases_and_dies, finishes, store=given_up_before.store)
    assert stage.keep() == 0


def test_nodes_that_are_missing_are_waited_for_if_there_is_a_run_and_else_left_to_the_user() -> None:
    assert Stage(ends_with(EXIT_NO_CLUSTER)).keep() == 2
    before = Stage(leases_and_dies, finishes)
    assert before.keep() == 0
    stage = Stage(ends_with(EXIT_NO_CLUSTER), ends_with(EXIT_NO_CLUSTER), finishes, store=before.store)
    assert stage.keep() == 0
    assert stage.pauses == [10, 20]


def test_a_store_that_is_away_when_a_supervisor_comes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(finishes)
    refresh = stage.repository.refresh

    def is_away_for_two_pauses() -> LogView:
        if len(stage.pauses) < 2:
            raise Unavailable("s3://bucket: gone")
        return refresh()

    monkeypatch.setattr(stage.repository, "refresh", is_away_for_two_pauses)
    assert stage.keep() == 0
    assert stage.pauses == [10, 20]


@pytest.mark.parametrize("code", [0, 2, 130])
def test_what_a_driver_says_at_its_first_start_is_the_last_word(code: int) -> None:
    stage = Stage(ends_with(code))
    assert stage.keep() == code
    assert stage.pauses == []


class Rival:
    """The driver of a supervisor that is gone: it has the lease, and speaks each time somebody waits."""

    def __init__(self, *, num_words: int, ends: Callable[[Repository, int], None] | None = None) -> None:
        self._words = iter(range(num_words))
        self._ends = ends

    def begin(self, stage: Stage) -> None:
        self._repository = Repository(stage.store, "r")
        self._term = self._repository.take_over("another driver")
        stage.in_pause = self._speak
        self._speak()

    def _speak(self) -> None:
        word = next(self._words, None)
        if word is not None:
            told = {"stage": "training", "driver": "another", "step": word, "has_lease": True}
            self._repository.store.put("runs/r/status.json", json.dumps(told).encode())
        elif self._ends:
            self._ends(self._repository, self._term)
            self._ends = None


def is_refused(repository: Repository) -> DriverEnd:
    """Its display has a last word too."""
    told = {"stage": "failed", "driver": "ours", "has_lease": False}
    repository.store.put("runs/r/status.json", json.dumps(told).encode())
    return DriverEnd(code=EXIT_OCCUPIED, why="the driver ended with exit code 3")


def test_beside_a_driver_that_is_at_work_a_supervisor_stands_by_until_that_one_is_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(is_refused, finishes)
    Rival(num_words=30).begin(stage)
    assert stage.keep() == 0
    assert len(stage.started) == 2
    said = "r: this supervisor stands by, until the other driver is silent or ends"
    assert capsys.readouterr().err.splitlines().count(said) == 1


def test_a_run_that_the_other_driver_stopped_or_gave_up_is_left_at_that() -> None:
    def stops_in_order(repository: Repository, term: int) -> None:
        repository.append(Stopped(step=4, why="longhaul stop"), term=term)

    def gives_it_up(repository: Repository, term: int) -> None:
        leave_note(repository.store, "r", AttemptNote(term=term, how="given up", given_up="twice"))

    for ends, code in ((stops_in_order, 0), (gives_it_up, 1)):
        stage = Stage(is_refused)
        Rival(num_words=30, ends=ends).begin(stage)
        assert stage.keep() == code


def test_to_begin_afresh_or_elsewhere_is_not_done_behind_a_driver_that_is_at_work() -> None:
    for flags in ("--fresh", "--resume step:4"):
        stage = Stage(is_refused, flags=flags)
        Rival(num_words=30).begin(stage)
        assert stage.keep() == 2
        assert stage.pauses == []


def test_a_supervisor_that_has_stood_by_waits_for_nodes_that_are_not_back() -> None:
    stage = Stage(is_refused, ends_with(2), finishes)
    Rival(num_words=30).begin(stage)
    assert stage.keep() == 0


def test_a_supervisor_that_stands_by_can_be_asked_to_end_and_leaves_the_run_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(is_refused)
    Rival(num_words=30).begin(stage)
    speak, waits = stage.in_pause, iter(range(5))

    def speak_and_end() -> None:
        speak()
        if next(waits, None) is None:
            stage.stop_signals.hear(SIGTERM)

    stage.in_pause = speak_and_end
    assert stage.keep() == 0
    assert stage.repository.refresh().stopped_step is None
    assert "r: kept no longer (SIGTERM); whoever is at work on it goes on" in capsys.readouterr().err


def test_nodes_that_are_not_back_yet_are_waited_for_once_the_run_has_begun() -> None:
    stage = Stage(leases_and_dies, ends_with(2), ends_with(2), finishes)
    assert stage.keep() == 0
    assert stage.pauses == [0, 10, 20]


def test_drivers_that_die_without_progress_are_given_up_and_the_store_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(*[leases_and_dies] * 10)
    assert stage.keep() == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "longhaul train: given up, 10 lost workers without a newer checkpoint: "
        "the driver was ended by SIGKILL"
    )
    note = given_up(stage.store, "r", stage.repository.refresh())
    assert note is not None
    assert note.given_up == "10 lost workers without a newer checkpoint"
    text = "10 lost workers without a newer checkpoint: the driver was ended by SIGKILL"
    assert stage.calls == [("given up", text, 0, 10)]


def test_what_a_run_leaves_out_it_leaves_out_after_its_supervisor_gave_it_up() -> None:
    def leaves_samples_out(repository: Repository) -> DriverEnd:
        term = repository.take_over("a driver")
        note = AttemptNote(
            term=term, how="failed", skips=((32, 40),), skipped_in=((0, "a 1"),), spoilt=((1, 7),)
        )
        leave_note(repository.store, "r", note)
        return KILLED

    stage = Stage(leaves_samples_out, *[leases_and_dies] * 9)
    assert stage.keep() == 1
    view = stage.repository.refresh()
    assert given_up(stage.store, "r", view) is not None
    note = read_newest(stage.store, "r", view)
    assert note is not None and (note.skips, note.spoilt) == (((32, 40),), ((1, 7),))
    assert note.skipped_in == ((0, "a 1"),)


def test_a_cluster_that_takes_no_job_is_waited_for() -> None:
    def away(_repository: Repository) -> DriverEnd:
        raise Away("http://head:8265 takes no job")

    stage = Stage(away, away, finishes)
    assert stage.keep() == 0
    assert stage.pauses == [10, 20]


def test_to_begin_afresh_or_elsewhere_is_done_once() -> None:
    stage = Stage(leases_and_dies, finishes, flags="--fresh --set steps=4")
    stage.keep()
    assert stage.started == [
        ["spec.yaml", "--store", "/s", "--set", "steps=4", "--fresh"],
        ["spec.yaml", "--store", "/s", "--set", "steps=4"],
    ]


def test_until_something_is_saved_it_begins_where_it_was_told_to() -> None:
    stage = Stage(leases_and_dies, finishes, flags="--resume step:4")
    stage.keep()
    assert stage.started == [["spec.yaml", "--store", "/s", "--resume", "step:4"]] * 2


def test_drivers_that_get_on_from_an_older_checkpoint_are_not_given_up() -> None:
    def saves_at(step: int) -> Act:
        def save(repository: Repository) -> DriverEnd:
            term = repository.take_over("a driver")
            repository.append(Commit(generation=generation(step, term=term)), term=term)
            return KILLED

        return save

    branch = [leases_and_dies, *(saves_at(step) for step in range(100, 900, 50)), finishes]
    stage = Stage(*branch, flags="--resume step:4")
    saves_at(1000)(stage.repository)
    assert stage.keep() == 0


def test_what_is_spoilt_is_not_what_a_later_driver_goes_on_from() -> None:
    def saves_what_is_spoilt(repository: Repository) -> DriverEnd:
        term = repository.take_over("a driver")
        repository.append(Commit(generation=generation(1, term=term, quarantined="spoilt")), term=term)
        return KILLED

    stage = Stage(saves_what_is_spoilt, finishes, flags="--resume step:4")
    stage.keep()
    assert stage.started == [["spec.yaml", "--store", "/s", "--resume", "step:4"]] * 2


def test_a_wish_is_handed_to_the_driver_and_its_end_is_the_supervisors() -> None:
    driver = Scripted(DriverEnd(code=0, why=""), waits=True)
    stage = Stage(driver)
    stop_request = StopRequest(aim="stop", why="SIGTERM")
    stage.stop_signals.hear(stop_request)
    assert stage.keep() == 0
    assert driver.stop_requests == [stop_request]


def test_a_driver_that_could_not_save_when_it_was_asked_to_stop_is_not_said_to_have_stopped() -> None:
    stage = Stage(Scripted(DriverEnd(code=1, why="the driver ended with exit code 1"), waits=True))
    stage.stop_signals.hear(StopRequest(aim="stop", why="SIGTERM"))
    assert stage.keep() == 1
    assert stage.repository.refresh().stopped_step is None


STOPPED = DriverEnd(code=None, why="the job was stopped", is_stopped=True)


def stops(repository: Repository) -> DriverEnd:
    repository.append(Stopped(step=9, why="SIGTERM"), term=repository.take_over("a driver"))
    return STOPPED


def had_just_finished(repository: Repository) -> DriverEnd:
    finishes(repository)
    return STOPPED


def had_not_begun(_repository: Repository) -> DriverEnd:
    return STOPPED


@pytest.mark.parametrize("act", [stops, had_just_finished, had_not_begun])
def test_a_job_that_was_stopped_ended_well_if_it_had_saved_or_not_begun(act: Act) -> None:
    stage = Stage(act)
    assert stage.keep() == 0
    assert len(stage.started) == 1


def test_a_signal_to_all_that_ends_a_driver_while_it_loads_starts_no_other_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def is_loading(_repository: Repository) -> DriverEnd:
        stage.stop_signals.hear(SIGTERM)
        return KILLED

    stage = Stage(is_loading)
    assert stage.keep() == 0
    assert (len(stage.started), stage.pauses) == (1, [])
    assert (
        capsys.readouterr().err == "r: stopped before its driver began (SIGTERM); the same command goes on\n"
    )


def test_a_job_that_was_stopped_before_it_had_saved_did_not_end_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def is_killed_while_it_saves(repository: Repository) -> DriverEnd:
        leases_and_dies(repository)
        return STOPPED

    stage = Stage(is_killed_while_it_saves)
    assert stage.keep() == 1
    assert len(stage.started) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "longhaul train: the job was stopped before its last step was saved; there is no checkpoint; "
        "running it again goes on"
    )


def test_a_job_that_was_stopped_while_its_store_is_away_is_not_said_to_have_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away() -> LogView:
        raise Unavailable("s3://bucket: gone")

    def loses_its_store(repository: Repository) -> DriverEnd:
        repository.take_over("a driver")
        monkeypatch.setattr(stage.repository, "refresh", is_away)
        return STOPPED

    stage = Stage(loses_its_store)
    assert stage.keep() == 1
    assert capsys.readouterr().err == (
        "longhaul train: the job was stopped, and its store does not tell at which step: s3://bucket: gone\n"
    )


def a_rival_leases_and(code: int) -> Act:
    def act(repository: Repository) -> DriverEnd:
        repository.take_over("a rival")
        return ends_with(code)(repository)

    return act


@pytest.mark.parametrize("code", [1, 2])
def test_a_wish_while_another_driver_is_at_work_ends_the_keeping_and_nothing_else(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(a_rival_leases_and(code))
    stage.in_pause = lambda: stage.stop_signals.hear(SIGTERM)
    assert stage.keep() == 0
    assert stage.repository.refresh().stopped_step is None
    assert stage.stop_signals.term is None
    assert capsys.readouterr().err.splitlines()[-1] == (
        "r: kept no longer (SIGTERM); whoever is at work on it goes on"
    )


def test_a_driver_that_died_before_its_lease_leaves_no_attempt_to_stop() -> None:
    stage = Stage(lambda _repository: KILLED)
    Repository(stage.store, "r").take_over("a rival")
    stage.in_pause = lambda: stage.stop_signals.hear(SIGTERM)
    assert stage.keep() == 0
    assert stage.repository.refresh().stopped_step is None


def test_an_attempt_that_begins_elsewhere_in_a_pause_is_not_stopped_with_the_one_before_it() -> None:
    def another_goes_on() -> None:
        Repository(stage.store, "r").take_over("a rival")
        stage.stop_signals.hear(SIGTERM)

    stage = Stage(leases_and_dies)
    stage.in_pause = another_goes_on
    assert stage.keep() == 0
    assert stage.repository.refresh().stopped_step is None


def test_while_no_driver_is_there_the_supervisor_hears_who_asks_its_attempt_to_stop() -> None:
    heard: list[int | None] = []
    stage = Stage(leases_and_dies, finishes)
    stage.in_pause = lambda: heard.append(stage.stop_signals.term)
    assert stage.keep() == 0
    assert heard == [1]


def test_a_wish_between_two_drivers_stops_the_run_and_the_log_says_so() -> None:
    def dies_while_somebody_wishes(repository: Repository) -> DriverEnd:
        stage.stop_signals.hear(StopRequest(aim="stop", why="Ctrl-C"))
        return leases_and_dies(repository)

    stage = Stage(dies_while_somebody_wishes)
    assert stage.keep() == 0
    assert isinstance(list(stage.repository.records())[-1].entry, Stopped)


def test_a_cluster_that_falls_silent_under_a_driver_is_waited_for_and_said_once_each_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(Scripted(DriverEnd(code=0, why=""), unseen=[10.0, 61.0, 300.0, 0.0, 5.0, 100.0]))
    assert stage.keep() == 0
    assert capsys.readouterr().err.count("does not answer, which is waited for") == 2


def test_a_cluster_that_stays_silent_under_a_driver_is_given_up_in_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    patience_s = Policy().patience_s
    stage = Stage(Scripted(KILLED, unseen=[patience_s, patience_s + 1, 0.0]))
    assert stage.keep() == 1
    assert len(stage.started) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "given up, the cluster of its driver has not answered for 6.0 h" in last
    assert [kind for kind, *_ in stage.calls] == ["given up"]


def test_whoever_is_called_is_told_no_credentials() -> None:
    def dies(repository: Repository) -> DriverEnd:
        repository.take_over("a driver")
        return DriverEnd(code=None, why="s3://me:hush@b was away")

    stage = Stage(*[dies] * 10)
    assert stage.keep() == 1
    ((_, text, _, _),) = stage.calls
    assert text.endswith("s3://b was away")


def test_when_no_driver_is_left_to_the_supervisor_calls_the_users_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, told = tmp_path / "store", tmp_path / "told.json"
    program = (
        "import shutil, sys; shutil.copyfileobj(sys.stdin, open(sys.argv[1], 'w')); sys.exit('no route')"
    )
    spec = {
        "name": "r",
        "model": "llama-tiny",
        "steps": 9,
        "recovery": {"losses": 1},
        "alarms": {"command": [sys.executable, "-S", "-c", program, str(told)]},
    }
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(spec))
    monkeypatch.setattr(
        "jobs.runs.supervisor.Child",
        lambda _words: Scripted(leases_and_dies(Repository(LocalStore(store), "r"))),
    )
    args = train_parser("longhaul train").parse_args([str(path), "--store", str(store)])
    assert keep_running(args) == 1
    facts = json.loads(told.read_text())
    assert (facts["run"], facts["store"], facts["attempt"], facts["kind"]) == ("r", str(store), 1, "given up")
    *_, of_command, last = capsys.readouterr().err.splitlines()
    assert of_command == "alarm: its command ended with 1: no route"
    assert last == f"longhaul train: given up, {facts['text']}"
