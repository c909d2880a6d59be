"""``longhaul watch``: which run or sweep is meant, where the page may be, and what it prints."""

import json
from pathlib import Path

import pytest

from checkpointing.errors import NothingToResume
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.commandline.usage_error import SpecError
from jobs.watching.choosing import Watched, choose
from jobs.watching.command import place_of
from tests.unit.printed import checked
from tests.unit.watching.watched import put_run, put_sweep

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.delenv("LONGHAUL_WATCH_TOKEN", raising=False)
    return LocalStore(tmp_path / "results")


def test_without_a_name_the_one_that_told_something_last_is_meant() -> None:
    store = MemoryStore()
    with pytest.raises(NothingToResume, match="give the name"):
        choose(store, None)
    put_run(store, "old", told_s=5.0)
    put_sweep(store, "trial", told_s=6.0)
    assert choose(store, None) == Watched(kind="sweep", name="trial")
    put_run(store, "new", told_s=7.0)
    assert choose(store, None) == Watched(kind="run", name="new")


def test_a_name_is_a_runs_before_it_is_a_sweeps_and_an_unknown_one_is_said() -> None:
    store = MemoryStore()
    put_sweep(store, "both")
    assert choose(store, "both").kind == "sweep"
    put_run(store, "both")
    assert choose(store, "both").kind == "run"
    with pytest.raises(NothingToResume, match="there is no run and no sweep 'other'"):
        choose(store, "other")


def test_loopback_needs_no_word_and_has_a_token_that_nobody_else_guesses() -> None:
    first, second = (place_of(None, None, may_print=True) for _ in range(2))
    assert (first.host, first.port, first.is_shown) == ("127.0.0.1", None, True)
    assert first.token != second.token and len(first.token) >= 40


@pytest.mark.parametrize("listen", ["0.0.0.0", "0.0.0.0:80", "[::]:80", "10.0.0.7:8266"])
def test_where_others_reach_it_a_token_is_demanded_and_never_shown(listen: str) -> None:
    with pytest.raises(SpecError, match="set LONGHAUL_WATCH_TOKEN"):
        place_of(listen, None, may_print=True)
    assert place_of(listen, TOKEN, may_print=True).is_shown is False


@pytest.mark.parametrize(
    "listen", ["", "host", "1.2.3.4:x", "1.2.3.4:70000", "::1", "127.0.0.1:", "999.0.0.1"]
)
def test_what_is_no_address_is_said(listen: str) -> None:
    with pytest.raises(SpecError, match="is no address"):
        place_of(listen, TOKEN, may_print=True)


@pytest.mark.parametrize("token", ["", "short", "with a blank in it", "ü" * 20])
def test_a_token_that_is_none_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(SpecError) as refused:
        place_of(None, token, may_print=True)
    assert not token or token not in str(refused.value)


def test_no_token_is_made_up_where_it_would_stay_in_a_log() -> None:
    with pytest.raises(SpecError, match="the output is no terminal"):
        place_of(None, None, may_print=False)


def test_one_snapshot_is_printed_as_json(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_run(store)
    assert main(["watch", "r", "--json"]) == 0
    told = checked("watch", capsys.readouterr().out)
    assert (told["kind"], told["status"]["step"], told["recorded"]["num_restarts"]) == ("run", 35, 2)
    put_sweep(store)
    assert main(["watch", "trial", "--json"]) == 0
    told = checked("watch", capsys.readouterr().out)
    assert (told["kind"], told["recorded"]["num_results"]) == ("sweep", 1)


def test_a_sweep_that_has_ended_is_shown_once_in_a_terminal(
    store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_sweep(store)
    store.delete("sweeps/trial/progress.json")
    described = json.loads(store.get("sweeps/trial/sweep.json"))
    store.put("sweeps/trial/sweep.json", json.dumps({"runs": described["runs"][:1]}).encode())
    assert main(["watch", "trial", "--terminal"]) == 0
    assert capsys.readouterr().out.startswith("trial: finished (read 0 s ago)")


@pytest.mark.parametrize("name", ["nix", "../../etc", "a/b", "\x1b[2J"])
def test_a_name_that_is_none_ends_with_a_line(
    name: str, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_run(store)
    assert main(["watch", name, "--json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("longhaul watch: ") and said.count("\n") == 1 and "\x1b" not in said
