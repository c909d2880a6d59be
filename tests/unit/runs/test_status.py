"""How a run is doing, for those who ask later: from the log, and from the small file beside it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Finish, Stop, Stopped
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.recovery.journal import AttemptNote, leave_note
from jobs.recovery.policy import FailedAttempt
from jobs.run_progress.run_view import RunDisplay
from jobs.run_progress.status_file import StatusFile, read_status_file
from jobs.runs import status as status_command
from jobs.runs.status import status_of
from jobs.training.task.events import Ended, Progress, Resumption
from tests.conftest import strict_json
from tests.unit.printed import checked
from tests.unit.recorded import NOON_S, attempt, incident_row, leave, step_row
from tests.unit.scenarios import KILLED_TWICE, record
from tests.unit.small_generations import RUN, generation

TOLD = {"step": 35, "num_steps": 40, "loss": 1.5, "tokens_per_s": 1000.0, "data_wait_share": 0.431}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A run in the default store with two generations, at steps 10 and 20. Nobody waits for a new word."""
    monkeypatch.setattr(status_command, "listen", lambda _store, _run, report: report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    repository = Repository(LocalStore(tmp_path / "results"), RUN)
    term = repository.take_over("me")
    for number in (1, 2):
        repository.append(Commit(generation=generation(number, metrics={"loss": 3.0 - number})), term=term)
    return repository


def tell(repository: Repository, text: str) -> None:
    repository.store.put(f"runs/{RUN}/status.json", text.encode())


def asked(repository: Repository) -> dict[str, Any]:
    return status_of(repository.store, RUN, clock=lambda: 102.0)


@pytest.mark.parametrize(
    "key",
    [
        "step",
        "attempt",
        "told_s",
        "loss",
        "stage",
        "why",
        "retry_at_s",
        "num_steps",
        "tokens_per_s",
        "data_wait_share",
    ],
)
@pytest.mark.parametrize("value", ['"x"', "[]", "{}", "true", "NaN", "1" + 400 * "0", "null"])
def test_values_of_another_type_are_as_if_they_were_not_there(
    repository: Repository, key: str, value: str
) -> None:
    tell(repository, f'{{"step": 24, "attempt": 1, "told_s": 100.0, "stage": "training", "{key}": {value}}}')
    found = asked(repository)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["step"] in (20, 24), found["run"]) == (True, RUN)


def test_without_a_word_of_the_run_its_log_says_how_far_it_is(repository: Repository) -> None:
    assert asked(repository) == {
        "run": RUN,
        "step": 20,
        "num_steps": None,
        "loss": 1.0,
        "tokens_per_s": None,
        "data_wait_share": None,
        "checked_step": None,
        "finished": False,
        "stage": None,
        "why": None,
        "told_age_s": None,
        "retry_in_s": None,
        "eta_s": None,
        "newest_generation": generation(2).name,
        "newest_durable_age_s": 100.0,
        "steps_at_risk": 0,
        "num_generations": 2,
        "attempts": 1,
        "group": None,
        "stop_asked": False,
        "stopped_step": None,
        "recorded": None,
    }


def test_what_the_run_told_is_newer_than_its_newest_checkpoint(repository: Repository) -> None:
    tell(repository, json.dumps(TOLD))
    found = asked(repository)
    assert {key: found[key] for key in TOLD} == TOLD
    assert found["newest_durable_age_s"] == 100.0


def test_a_checkpoint_is_newer_than_what_an_earlier_attempt_told(repository: Repository) -> None:
    tell(repository, json.dumps(TOLD | {"step": 15}))
    assert asked(repository)["step"] == 20


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"step"'])
def test_a_damaged_word_of_the_run_is_none(text: str, repository: Repository) -> None:
    before = asked(repository)
    tell(repository, text)
    assert asked(repository) == before


def test_a_clock_that_is_behind_makes_no_negative_age(repository: Repository) -> None:
    assert status_of(repository.store, RUN, clock=lambda: 0.0)["newest_durable_age_s"] == 0.0


def test_a_run_that_is_finished_or_was_asked_to_stop_says_so(repository: Repository) -> None:
    repository.append(Stop())
    assert asked(repository)["stop_asked"] is True
    repository.append(Finish(step=40), term=1)
    assert (asked(repository)["finished"], asked(repository)["step"]) == (True, 40)


@pytest.mark.parametrize("told", [{"stage": "finished"}, TOLD | {"num_steps": 4000}])
def test_all_steps_of_a_finished_run_are_those_that_it_did(
    told: dict[str, Any], repository: Repository
) -> None:
    """A short attempt ends before it tells how many steps there are, so an earlier one's number may stand."""
    tell(repository, json.dumps(told))
    repository.append(Finish(step=40), term=1)
    assert (asked(repository)["step"], asked(repository)["num_steps"]) == (40, 40)


@pytest.mark.parametrize(
    ("told", "stage"),
    [
        ({"stage": "training", "attempt": 1, "told_s": 90.0}, "training"),
        ({"stage": "training", "attempt": 1, "told_s": 3702.0}, "training"),
        ({"stage": "training", "attempt": 1, "told_s": -3498.0}, "training"),
        ({"stage": "waiting", "attempt": 1, "told_s": 101.0}, "waiting"),
        ({"stage": "stopped", "attempt": 1, "told_s": 2.0}, "stopped"),
        ({"stage": "given up", "attempt": 1, "told_s": 2.0}, "given up"),
        ({"stage": "failed", "attempt": 1, "told_s": 2.0}, "failed"),
        # An attempt has begun since, and has not told anything yet.
        ({"stage": "stopped", "attempt": 0, "told_s": 99.0}, "starting"),
    ],
)
def test_what_it_does_is_what_its_driver_told_whatever_its_clock_says(
    told: dict[str, Any], stage: str, repository: Repository
) -> None:
    tell(repository, json.dumps(TOLD | told))
    assert asked(repository)["stage"] == stage


def test_a_run_that_its_supervisor_gave_up_is_given_up_whatever_its_driver_told_last(
    repository: Repository,
) -> None:
    tell(repository, json.dumps({**TOLD, "stage": "training", "told_s": 101.0, "attempt": 1}))
    ending = FailedAttempt(term=1, cause="driver died", reason="it was killed", ended_s=101.0)
    note = AttemptNote(term=1, how="given up", ending=ending, given_up="10 lost workers")
    leave_note(repository.store, RUN, note)
    found = asked(repository)
    assert (found["stage"], found["why"]) == ("given up", "10 lost workers: it was killed")


def test_a_driver_that_was_begun_by_hand_since_is_what_the_run_is_doing(repository: Repository) -> None:
    ending = FailedAttempt(term=1, cause="error", reason="boom", ended_s=50.0)
    leave_note(repository.store, RUN, AttemptNote(term=1, how="given up", ending=ending, given_up="twice"))
    waiting = {**TOLD, "stage": "waiting", "told_s": 96.0, "attempt": 1, "has_lease": False}
    tell(repository, json.dumps(waiting))
    assert asked(repository)["stage"] == "waiting"
    assert status_of(repository.store, RUN, hears=lambda _: None)["stage"] == "given up"


def test_after_a_stop_a_new_driver_that_waits_for_room_is_what_the_run_is_doing(
    repository: Repository,
) -> None:
    repository.append(Stopped(step=20, why="longhaul stop"), term=1)
    assert asked(repository)["stage"] == "stopped"
    waiting = {**TOLD, "stage": "waiting", "told_s": 96.0, "attempt": 1, "has_lease": False}
    tell(repository, json.dumps(waiting))
    assert asked(repository)["stage"] == "waiting"
    assert status_of(repository.store, RUN, hears=lambda _: None)["stage"] == "stopped"
    tell(repository, json.dumps({**waiting, "has_lease": True}))
    assert asked(repository)["stage"] == "stopped"


def test_the_time_until_the_next_attempt_is_by_one_clock(repository: Repository) -> None:
    waiting = {**TOLD, "stage": "waiting", "told_s": 7200.0, "retry_at_s": 7260.0, "attempt": 1}
    tell(repository, json.dumps(waiting))
    assert asked(repository)["retry_in_s"] == 60.0


def test_what_was_told_before_a_run_was_begun_afresh_counts_no_more(repository: Repository) -> None:
    tell(repository, json.dumps(TOLD | {"stage": "failed", "attempt": 1, "told_s": 101.0}))
    repository.take_over("me", fresh=True)
    found = asked(repository)
    assert (found["step"], found["stage"], found["loss"]) == (0, None, None)


def test_a_driver_that_begins_leaves_standing_what_the_one_before_it_told(repository: Repository) -> None:
    tell(repository, json.dumps(TOLD))
    with StatusFile(repository.store, RUN) as status:
        status.tell({"stage": "starting", "attempt": 2})
    found = strict_json(repository.store.get(f"runs/{RUN}/status.json"))
    assert found == TOLD | {"stage": "starting", "attempt": 2}


def test_a_driver_that_has_no_lease_yet_does_not_speak_for_the_attempt_before_it(
    repository: Repository,
) -> None:
    tell(repository, json.dumps(TOLD | {"stage": "training", "attempt": 1}))
    repository.take_over("killed before it told anything")
    with StatusFile(repository.store, RUN) as status:
        status.tell({"stage": "waiting", "has_lease": False})
    assert "attempt" not in strict_json(repository.store.get(f"runs/{RUN}/status.json"))
    assert (asked(repository)["stage"], asked(repository)["step"]) == ("waiting", 35)


def test_a_driver_that_begins_afresh_leaves_nothing_of_it_standing(repository: Repository) -> None:
    tell(repository, json.dumps(TOLD | {"stage": "stopped", "attempt": 1}))
    repository.take_over("me", fresh=True)
    with StatusFile(repository.store, RUN, is_fresh=True) as status:
        status.tell({"stage": "starting", "attempt": 2})
    found = asked(repository)
    assert (found["stage"], found["step"], found["num_steps"], found["loss"]) == ("starting", 0, None, None)


def test_who_listens_for_another_driver_does_not_write_over_its_word(repository: Repository) -> None:
    heard = {"stage": "training", "driver": "another"}
    repository.store.put(f"runs/{RUN}/status.json", json.dumps(heard).encode())
    with StatusFile(repository.store, RUN, "own", may_speak=lambda: False) as status:
        status.tell({"stage": "failed"})
    assert read_status_file(repository.store, RUN) == heard
    with StatusFile(repository.store, RUN, "own", may_speak=lambda: True) as status:
        status.tell({"stage": "starting"})
    assert read_status_file(repository.store, RUN) == {"stage": "starting", "driver": "own"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"stage": "training", "eta_s": 3600.0}, ["training, step 35/40", "1,000 tokens/s, done in 1:00:00"]),
        ({"stage": "training"}, ["\nwaiting for data 43.1% of the time\n"]),
        (
            {"stage": "waiting", "why": "node lost", "retry_at_s": 9e9},
            ["waits ", " for its next attempt (node lost)"],
        ),
        ({"stage": "given up", "why": "the same error twice"}, ["r: given up (the same error twice), step"]),
        ({"stage": "stopped", "why": "at step 35"}, ["r: stopped (at step 35), step 35/40"]),
        ({}, [", 15 steps ago"]),
    ],
)
def test_people_read_what_it_does_and_what_is_at_risk(
    told: dict[str, Any], said: list[str], repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(repository, json.dumps({**TOLD, "attempt": 1, "told_s": time.time(), **told}))
    assert main(["status", RUN]) == 0
    text = capsys.readouterr().out
    assert [part for part in said if part not in text] == []


def test_what_restarts_cost_is_told_to_programs_and_summed_for_people(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    record(repository.store, KILLED_TWICE, run=RUN)
    found = asked(repository)["recorded"]
    assert found["num_restarts"] == 2
    assert [one["from_step"] for one in found["restarts"]] == [6, 8]
    assert (found["num_redone"], found["restarts"][0]["phases_s"]["detect"]) == (8, 8.0)
    assert main(["status", RUN]) == 0
    assert "\n2 restarts cost 0:01:54 of device time, 8 steps done again\n" in capsys.readouterr().out


def test_each_source_s_loss_is_that_of_its_newest_steps_whatever_else_a_row_says(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ['{"web": 9.0}'] + ['{"web": 1.5}'] * 98 + ['{"web": 2.5, "code": 3.0}'] * 2
    hostile = ["{", "[1]", '{"web": NaN, "code": "3", "books": null}', "[" * 10_000, None]
    losses = [*told, *hostile]
    found = [step_row(step, source_losses=text) for step, text in enumerate(losses, start=1)]
    leave(repository.store, attempt(run=RUN), "steps", found)
    assert asked(repository)["recorded"]["source_losses"] == {"code": 3.0, "web": pytest.approx(1.52)}
    assert main(["status", RUN]) == 0
    assert "\nloss by source: code 3.0000, web 1.5200\n" in capsys.readouterr().out


def test_the_newest_attempt_tells_which_attention_kernel_ran(repository: Repository) -> None:
    for term, kernel in enumerate((None, "math", "flash"), start=1):
        found = attempt(run=RUN, term=term, attention_kernel=kernel)
        leave(repository.store, found, "steps", [step_row(term)])
        assert asked(repository)["recorded"]["attention_kernel"] == kernel


def test_the_group_is_that_of_the_newest_attempt_and_of_no_earlier_one(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(repository, json.dumps({**TOLD, "attempt": 1, "group": "amd"}))
    assert asked(repository)["group"] == "amd"
    assert main(["status", RUN]) == 0
    assert ", attempt 1 in group amd\n" in capsys.readouterr().out
    repository.take_over("me")
    assert asked(repository)["group"] is None


def test_what_happened_is_not_lost_among_saves(repository: Repository) -> None:
    record(repository.store, KILLED_TWICE, run=RUN)
    saves = [incident_row("save", happened_s=NOON_S + 300 + number) for number in range(9)]
    leave(repository.store, attempt(run=RUN, term=3), "incidents", saves, number=9)
    kinds = [one["kind"] for one in asked(repository)["recorded"]["incidents"]]
    assert kinds == ["failure", "restore", "failure", "restore", "end"]


def test_a_run_that_is_not_there_is_an_error_that_says_where_it_was_sought() -> None:
    with pytest.raises(NothingToResume, match=r"memory.*: there is no run 'r'; expected the name of one"):
        status_of(MemoryStore(), RUN)


def test_people_read_three_lines(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    tell(repository, json.dumps(TOLD))
    assert main(["status", RUN]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first, second) == ("r: not finished, step 35/40, attempt 1", "loss 1.5000")
    assert third.startswith(f"newest checkpoint {generation(2).name}, ")


def test_where_there_is_no_checkpoint_yet_the_text_says_so(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    Repository(repository.store, "young").take_over("me")
    assert main(["status", "young"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "young: not finished, step 0, attempt 1",
        "no checkpoint yet",
    ]


def test_an_unknown_run_ends_with_2_and_one_line(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "other"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("longhaul status: ") and "there is no run 'other'" in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_diverged_run_is_told_to_programs_in_json_that_all_of_them_read(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    display = RunDisplay(RUN, quiet=True, silent=False)
    with StatusFile(repository.store, RUN) as status:
        display.on_progress(status.tell)
        display.hear(Resumption(step=0, generation=None, trail=()))
        display.hear(
            Progress(
                step=30,
                num_steps=40,
                loss=None,
                tokens_per_s=10.0,
                durable_step=20,
                durable_s=2.0,
                num_failed_saves=0,
                num_skipped_saves=0,
            )
        )
        display.hear(Ended(step=40, loss=None, generation=generation(2).name))
    written = strict_json(repository.store.get(f"runs/{RUN}/status.json"))
    assert (written["step"], written["num_steps"], written["loss"]) == (40, 40, None)

    assert main(["status", RUN, "--json"]) == 0
    assert checked("status", capsys.readouterr().out)["loss"] is None
    assert main(["status", RUN]) == 0
    assert "loss" not in capsys.readouterr().out
