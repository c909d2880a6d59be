"""With the store's key, nobody else decides by a planted note what a run leaves out, or that it ends."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import LogView
from checkpointing.log.signing import VARIABLE
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from jobs.recovery.journal import (
    AttemptNote,
    given_up,
    leave_note,
    open_journal,
    read_failed_attempts,
    read_newest,
    read_note,
)
from jobs.recovery.policy import FailedAttempt, Policy, next_move
from jobs.training.integrity.clean_checks import CleanCheck, leave_clean_check, read_clean_check
from jobs.training.task.skipping import merged

RUN = "r"
FORGED = AttemptNote(term=1, how="given up", given_up="planted", skips=((0, 4096),), spoilt=((1, 0),))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv(VARIABLE, raising=False)
    return MemoryStore()


def with_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: bytes = b"k") -> None:
    path = tmp_path / letter.decode()
    path.write_bytes(letter * 32)
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))


def begun(store: Store) -> LogView:
    repository = Repository(store, RUN)
    repository.take_over("me")
    return repository.view


def test_a_planted_note_leaves_out_nothing_and_gives_no_run_up(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    view = begun(store)
    monkeypatch.delenv(VARIABLE)
    leave_note(store, RUN, FORGED)
    assert given_up(store, RUN, view) == FORGED  # Without a key nobody can tell.
    with_key(tmp_path, monkeypatch)
    journal = open_journal(Repository(store, RUN))
    assert (journal.skips, journal.spoilt) == ((), ())
    assert given_up(store, RUN, view) is read_newest(store, RUN, view) is None
    assert [one.cause for one in read_failed_attempts(store, RUN, view)] == ["driver died"]


def test_a_note_of_another_key_attempt_or_run_or_with_another_word_is_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    leave_note(store, RUN, FORGED)
    data = store.get(f"runs/{RUN}/attempts/000000000001.json")
    assert read_note(store, RUN, 1) == FORGED
    store.put(f"runs/{RUN}/attempts/000000000002.json", data)
    store.put("runs/s/attempts/000000000001.json", data)
    assert read_note(store, RUN, 2) is read_note(store, "s", 1) is None
    store.put(f"runs/{RUN}/attempts/000000000001.json", data.replace(b"4096", b"4095"))
    assert read_note(store, RUN, 1) is None
    store.put(f"runs/{RUN}/attempts/000000000001.json", data)
    with_key(tmp_path, monkeypatch, b"x")
    assert read_note(store, RUN, 1) is None


def test_a_planted_check_or_one_of_another_attempt_is_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = CleanCheck(term=1, step=20, nodes=("a", "b"))
    leave_clean_check(store, RUN, check)
    assert read_clean_check(store, RUN, 1) == check  # Without a key nobody can tell.
    store.put(f"runs/{RUN}/checks/000000000002.json", store.get(f"runs/{RUN}/checks/000000000001.json"))
    assert read_clean_check(store, RUN, 2) is None
    with_key(tmp_path, monkeypatch)
    begun(store)
    assert read_clean_check(store, RUN, 1) is None
    leave_clean_check(store, RUN, check)
    assert read_clean_check(store, RUN, 1) == check
    data = store.get(f"runs/{RUN}/checks/000000000001.json")
    for name in (f"runs/{RUN}/checks/000000000002.json", "runs/s/checks/000000000001.json"):
        store.put(name, data)
    assert read_clean_check(store, RUN, 2) is read_clean_check(store, "s", 1) is None
    store.put(f"runs/{RUN}/checks/000000000001.json", data.replace(b"20", b"30"))
    assert read_clean_check(store, RUN, 1) is None


@pytest.mark.parametrize(
    "planted",
    [b"", b"{}", b"[]", b"7", b"[" * 100_000, b'{"subject": "clean check", "term": 1}']
    + [
        json.dumps({"subject": "clean check", "term": 1, "step": step, "nodes": nodes}).encode()
        for step, nodes in ((-1, []), (2**63, []), ("7", []), (7, "ab"), (7, [1]), (True, []))
    ],
)
def test_what_is_no_check_is_none(store: Store, planted: bytes) -> None:
    store.put(f"runs/{RUN}/checks/000000000001.json", planted)
    assert read_clean_check(store, RUN, 1) is None


def test_who_has_no_key_reads_what_a_driver_with_one_noted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(tmp_path, monkeypatch)
    leave_note(store, RUN, FORGED)
    monkeypatch.delenv(VARIABLE)
    assert read_note(store, RUN, 1) == FORGED


NOTE = {
    "schema": 1,
    "term": 1,
    "how": "failed",
    "ending": {
        "term": 1, "cause": "error", "reason": "r", "ended_s": 1.0, "step": 2, "durable_step": 0,
        "ranks": [0], "nodes": ["a"], "all_nodes": ["a", "b"],
    },
    "log_tail": ["a"],
    "skips": [[1, 2]],
    "spoilt": [[1, 5]],
    "given_up": None,
}  # fmt: skip
WRONG: tuple[object, ...] = (
    {}, [[1]], [["a", "b"]], [[1, "b"]], [{}], ["a", 1], 1.5, "text", -(10**400), [[10**30, 1]], float("nan"),
)  # fmt: skip


def with_a(name: str, value: object) -> bytes:
    """The note with another value in one place."""
    told: dict[str, Any] = copy.deepcopy(NOTE)
    *above, last = name.split(".")
    (told["ending"] if above else told)[last] = value
    return json.dumps(told).encode()


@pytest.mark.parametrize("name", [*NOTE, *(f"ending.{name}" for name in NOTE["ending"])])
def test_a_note_with_a_value_of_another_type_ends_no_start_with_a_traceback(store: Store, name: str) -> None:
    """Without a key anybody who writes to the store can leave one."""
    view = begun(store)
    for value in WRONG:
        store.put(f"runs/{RUN}/attempts/000000000001.json", with_a(name, value))
        journal = open_journal(Repository(store, RUN))
        next_move(journal.history * 3, Policy())
        assert merged(journal.skips) == journal.skips
        assert all(term + step < 2**64 for term, step in journal.spoilt)
        if note := read_note(store, RUN, view.term):
            assert "\n".join([note.given_up or "", *note.log_tail]) is not None


@pytest.mark.parametrize("ended_s", [1e300, -1e301, float("inf"), float("nan")])
def test_a_note_of_an_attempt_that_ended_at_no_time_is_none(store: Store, ended_s: float) -> None:
    begun(store)
    store.put(f"runs/{RUN}/attempts/000000000001.json", with_a("ending.ended_s", ended_s))
    assert read_note(store, RUN, 1) is None


def test_a_note_as_drivers_write_it_is_read_whatever_a_later_version_adds(store: Store) -> None:
    view = begun(store)
    store.put(f"runs/{RUN}/attempts/000000000001.json", with_a("ending.new", [1]))
    note = read_note(store, RUN, view.term)
    assert note is not None
    assert note.ending == FailedAttempt(
        term=1, cause="error", reason="r", ended_s=1.0, step=2, ranks=(0,), nodes=("a",), all_nodes=("a", "b")
    )
    assert (note.skips, note.spoilt, note.log_tail) == (((1, 2),), ((1, 5),), ("a",))
