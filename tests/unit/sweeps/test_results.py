"""A sweep's folder in the store: which result counts when several want to."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Run
from jobs.sweeps.results import Results
from jobs.training.task.measurement import Failure
from reporting.results.records import RunRecord, read_record
from tests.unit.builders import CRASH, cells_of, measurement, record, run_of, sweep

SPEC = sweep()
RUN = run_of(SPEC)
FOLDER = f"sweeps/trial/runs/{RUN.name}"
RESULT = f"{FOLDER}/result.json"
OK = record(SPEC, RUN, measurement(RUN.run_id))
FASTER = record(SPEC, RUN, measurement(RUN.run_id, step_s=0.01))
CRASHED = record(SPEC, RUN, CRASH)
HUNG = record(SPEC, RUN, Failure(status="hang", reason="no step for 30 s"))


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


@pytest.fixture
def results(store: Store) -> Results:
    return Results(store, SPEC.name)


def retried(row: RunRecord, attempt: int = 2) -> RunRecord:
    return replace(row, attempt=attempt)


def names(store: Store) -> list[str]:
    return sorted(name.removeprefix(f"{FOLDER}/") for name in store.list(FOLDER))


def test_a_new_sweep_has_no_results(results: Results) -> None:
    found = results.load()
    assert (found.records, found.unreadable) == ({}, {})


def test_a_saved_row_is_found_under_the_name_of_its_run(results: Results, store: Store) -> None:
    assert results.save(RUN, OK) == OK
    assert results.load().records == {RUN.name: OK}
    assert names(store) == ["result.json"]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [(OK, FASTER, OK), (OK, CRASHED, OK), (CRASHED, HUNG, CRASHED)],
    ids=["numbers before numbers", "numbers before a failure", "a failure before a failure"],
)
def test_of_two_sweeps_the_first_result_counts_for_both(
    results: Results, store: Store, first: RunRecord, second: RunRecord, counts: RunRecord
) -> None:
    results.save(RUN, first)
    assert results.save(RUN, second) == counts
    assert read_record(store.get(RESULT)) == counts
    assert names(store) == ["result.json"]


def test_numbers_beat_another_sweeps_failure_which_is_kept(results: Results, store: Store) -> None:
    results.save(RUN, CRASHED)
    assert results.save(RUN, OK) == retried(OK)
    assert read_record(store.get(RESULT)) == retried(OK)
    assert read_record(store.get(f"{FOLDER}/attempts/001.json")) == CRASHED


def test_a_retry_keeps_every_earlier_attempt_and_the_newest_counts(results: Results, store: Store) -> None:
    results.save(RUN, CRASHED)
    results.save(RUN, retried(HUNG))
    results.save(RUN, retried(OK, attempt=3))
    assert names(store) == ["attempts/001.json", "attempts/002.json", "result.json"]
    assert read_record(store.get(f"{FOLDER}/attempts/002.json")) == retried(HUNG)
    assert results.load().records == {RUN.name: retried(OK, attempt=3)}


def test_a_retry_that_was_killed_before_it_replaced_goes_through_the_next_time(
    results: Results, store: Store
) -> None:
    results.save(RUN, CRASHED)
    store.create(f"{FOLDER}/attempts/001.json", CRASHED.to_json())
    assert results.save(RUN, retried(OK)) == retried(OK)
    assert results.load().records == {RUN.name: retried(OK)}


def test_a_retry_never_replaces_numbers_that_came_in_the_meantime(results: Results) -> None:
    results.save(RUN, CRASHED)
    results.save(RUN, retried(OK))
    assert results.save(RUN, retried(HUNG)) == retried(OK)
    assert results.load().records == {RUN.name: retried(OK)}


def test_of_many_sweeps_at_once_all_agree_on_one_result(results: Results) -> None:
    rows = [record(SPEC, RUN, measurement(RUN.run_id, step_s=0.1 + index)) for index in range(8)]
    with ThreadPoolExecutor(len(rows)) as pool:
        answers = list(pool.map(lambda row: results.save(RUN, row), rows))
    assert answers == [answers[0]] * len(rows)
    assert results.load().records == {RUN.name: answers[0]}


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (OK.to_json()[:100], "not JSON"),
        (b"", "not JSON"),
        (b'{"strategy": "ddp", "tokens_per_sec": 8369.4}', "schema_version None, expected 1"),
        (json.dumps({**OK.to_dict(), "schema_version": 9}).encode(), "schema_version 9, expected 1"),
        (replace(OK, repeat=2, run_id="other-r2").to_json(), "the result of another run (other-r2)"),
    ],
    ids=["truncated", "empty", "foreign", "newer", "another run's"],
)
def test_a_file_that_is_no_result_is_named_and_kept_beside_the_next_one(
    results: Results, store: Store, data: bytes, wrong: str
) -> None:
    store.put(RESULT, data)
    found = results.load()
    assert found.records == {}
    assert found.unreadable[RUN.name].startswith(wrong)
    results.save(RUN, retried(OK))
    assert store.get(f"{FOLDER}/attempts/001.json") == data
    assert results.load().records == {RUN.name: retried(OK)}


def test_other_files_in_a_sweeps_folder_are_no_results(results: Results, store: Store) -> None:
    results.save(RUN, CRASHED)
    results.save(RUN, retried(OK))
    results.write_file(RUN, "steps.jsonl", b"{}\n")
    store.put("sweeps/trial/runs/result.json", b"stray")
    store.put("sweeps/trial2/runs/a/result.json", b"another sweep's")
    assert list(results.load().records) == [RUN.name]
    assert results.load().unreadable == {}


def test_the_sweeps_description_has_the_spec_and_the_order_but_no_secret(
    results: Results, store: Store
) -> None:
    variables = {
        "HF_TOKEN": "s3cret",
        "PROXY": "https://me:s3cret@proxy:3128/x?sig=s3cret",
        "NCCL_DEBUG": "INFO",
    }
    spec = sweep(overrides={"local": {"environment": variables}}, store="/data/results")
    runs = [Run(cell=cells_of(spec)[0], repeat=repeat, order=repeat) for repeat in (2, 1)]
    results.describe(spec, runs)
    text = store.get("sweeps/trial/sweep.json").decode()
    found = json.loads(text)
    assert "s3cret" not in text
    assert found["runs"] == [run.name for run in runs]
    assert found["spec"]["overrides"]["local"]["environment"] == {
        "HF_TOKEN": "<redacted>",
        "PROXY": "https://proxy:3128/x",
        "NCCL_DEBUG": "INFO",
    }
    assert found["spec"]["store"] == "/data/results"


def test_a_stored_spec_can_be_loaded_again() -> None:
    for changes in ({"global_batch": 8, "axes": {"micro_batch": ["max", 2]}}, {"grad_accum": 3}):
        store = MemoryStore()
        spec = sweep(**changes)
        Results(store, spec.name).describe(spec, [])
        stored = json.loads(store.get("sweeps/trial/sweep.json"))["spec"]
        again = SweepSpec.model_validate_json(json.dumps(stored))
        assert cells_of(again) == cells_of(spec)


def test_a_file_of_the_sweep_that_would_take_far_more_memory_than_bytes_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    store.put("sweeps/trial/sweep.json", b"[" + b"[[]]," * (2**22 // 3 + 1) + b"[]]")

    def parsed(_: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", parsed)
    assert len(Results(store, SPEC.name).sessions(2).found) == 1


def test_what_somebody_put_there_without_an_end_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in (RESULT, "sweeps/trial/sweep.json"):
        store.put(name, b"")
        os.truncate(tmp_path / name, 1 << 40)  # no memory holds it
    results = Results(store, SPEC.name)

    assert "1,099,511,627,776 bytes" in results.load().unreadable[RUN.name]
    assert len(results.sessions(2).found) == 1
    assert results.finished_at(RUN.name) is None
    assert results.save(RUN, OK) == OK
    assert results.load().records == {RUN.name: OK}
