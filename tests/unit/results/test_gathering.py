"""Reading all results of a store: what is there counts, what can't be read is named."""

import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from reporting.results import gathering
from reporting.results.gathering import MOST_RESULT_BYTES, gather
from reporting.results.imported import file_of
from reporting.results.rows import Row
from reporting.results.unfinished import Unfinished
from tests.unit.builders import measurement, put_results, record, run_of, sweep

PLACE = "sweeps/trial/runs/a/result.json"


def result(**changes: Any) -> bytes:
    spec = sweep()
    run = run_of(spec)
    plain = record(spec, run, measurement(run.run_id)).to_dict()
    return json.dumps({**plain, **changes}).encode()


def store_of(**runs: bytes) -> MemoryStore:
    store = MemoryStore()
    for name, data in runs.items():
        store.put(f"sweeps/trial/runs/{name}/result.json", data)
    return store


def test_large_results_are_not_in_memory_at_once_however_many_somebody_planted() -> None:
    planted = json.dumps("x" * 2_000_000).encode()
    store = store_of(good=result(), large=result(repeat=2, warnings=["x" * 2_000_000]))
    for number in range(30):
        store.put(f"sweeps/trial/runs/planted-{number}/result.json", planted)
    store.put("sweeps/trial/runs/beyond/result.json", b" " * (MOST_RESULT_BYTES + 1))
    tracemalloc.start()
    try:
        found = gather(store)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert len(found.rows) == 2
    assert len(found.unread_results) == 31
    assert found.unread_results[0].reason == "has 50,331,649 bytes, at most 50,331,648 are read"


def test_an_import_may_be_larger_than_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("MOST_RESULT_BYTES", "_MOST_IN_BATCH_BYTES"):
        monkeypatch.setattr(gathering, bound, 10)
    store = store_of(a=result())
    store.put(*file_of([Row(source="old.csv", imported=True)], "old"))
    found = gather(store)
    assert [row.imported for row in found.rows] == [True]
    assert len(found.unread_results) == 1


def described(store: MemoryStore, *runs: str) -> MemoryStore:
    store.put("sweeps/trial/sweep.json", json.dumps({"schema_version": 1, "runs": runs}).encode())
    return store


def test_runs_that_a_sweep_named_and_that_have_no_result_are_missing() -> None:
    store = described(store_of(a=result(), b=b"broken"), "a", "b", "c", "d")
    assert gather(store).unfinished == (Unfinished(sweep="trial", num_runs=4, num_missing=2),)
    store.put("sweeps/trial/runs/c/result.json", result(repeat=2))
    store.put("sweeps/trial/runs/d/result.json", result(repeat=3))
    assert gather(store).unfinished == ()


def test_a_search_for_the_best_setting_misses_no_run() -> None:
    assert gather(described(store_of(a=result(rung=1)), "a", "b")).unfinished == ()
    trial = result(status="oom", batch_search={"asked": "max", "is_over": False})
    assert [one.num_missing for one in gather(described(store_of(a=trial), "a", "b")).unfinished] == [1]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"runs": "abc"}', b"[" * 100_000])
def test_a_description_that_can_not_be_read_is_named_and_its_sweep_not_called_unfinished(data: bytes) -> None:
    store = store_of(a=result())
    store.put("sweeps/trial/sweep.json", data)
    found = gather(store)
    assert found.unfinished == ()
    assert [file.name for file in found.skipped] == ["sweeps/trial/sweep.json"]
    assert found.unread_results == ()


def test_every_result_is_a_row_in_the_order_of_the_names() -> None:
    store = store_of(b=result(repeat=2), a=result(repeat=1))
    store.put("sweeps/trial/sweep.json", b'{"runs": []}')
    store.put("sweeps/trial/runs/a/attempts/001.json", result(status="failed"))

    found = gather(store)

    assert [(row.source, row.repeat) for row in found.rows] == [
        (PLACE, 1),
        ("sweeps/trial/runs/b/result.json", 2),
    ]
    assert found.skipped == ()


def test_only_the_named_sweeps_are_read() -> None:
    store = store_of(a=result())
    store.put("sweeps/other/runs/a/result.json", result(sweep="other"))

    assert {row.sweep for row in gather(store).rows} == {"trial", "other"}
    assert {row.sweep for row in gather(store, sweeps=["other"]).rows} == {"other"}
    assert gather(store, sweeps=["../escape"]).rows == ()


def test_a_row_says_what_the_sections_of_the_result_say() -> None:
    plain = json.loads(result())

    (row,) = gather(store_of(a=result())).rows

    assert row.step_time_p95_sec == plain["performance_metrics"]["p95_sec"]
    assert row.loss_reference == plain["loss_metrics"]["reference"]
    assert row.parameters == plain["training_config"]["parameters"]
    assert row.torch == plain["environment"]["torch"]
    assert row.raw_step_times == tuple(plain["raw_step_times"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (result()[:-30], "not JSON"),
        (b"[1, 2]", "schema_version None"),
        (result(schema_version=99), "schema_version 99, expected 1"),
        (b'{"schema_version": 1, "hello": "world"}', "not a run's result"),
        (result(tokens_per_sec="fast"), "tokens_per_sec is 'fast', expected float"),
        (result(world_size=[2]), "world_size is [2], expected int"),
        (result(status=None), "without a status"),
        (result(simulated=1), "simulated is 1, expected bool"),
        (result(raw_step_times=[0.1, "x"]), "raw_step_times is (0.1, 'x'), expected tuple"),
        (result(environment={"packages": ["torch"]}), "packages is ('torch',), expected tuple"),
        (result(per_rank="none"), "not a run's result"),
        (result(environment={"variables": {"OMP_NUM_THREADS": 1}}), "OMP_NUM_THREADS of variables is 1"),
        (result(environment={"packages": {"ray": ["2"]}}), "ray of packages is ['2']"),
        (result(metrics={"mine": {"deep": 1}}), "mine of metrics is {'deep': 1}"),
        (result(group="a\ud800b"), "not JSON in UTF-8"),
        (result(environment={"variables": {"a\ud800": "b"}}), "not JSON in UTF-8"),
        (result(tokens_per_sec=1e300), "tokens_per_sec is 1e+300, which is too large"),
        (result(tokens_per_sec=1e-300), "tokens_per_sec is 1e-300, which is too small"),
        (result(mean_loss=-(2**60)), "mean_loss is -1152921504606846976, which is too large"),
        (result(seq_len=2**63), "seq_len is 9223372036854775808, which is too large"),
        (result(raw_step_times=[0.1, 2**60]), "raw_step_times is (0.1, 1152921504606846976), which is too"),
    ],
)
def test_what_is_no_result_is_named_and_skipped(data: bytes, reason: str) -> None:
    found = gather(store_of(a=data, good=result()))

    assert [row.source for row in found.rows] == ["sweeps/trial/runs/good/result.json"]
    assert [skipped.name for skipped in found.skipped] == [PLACE]
    assert reason in found.skipped[0].reason


@pytest.mark.parametrize("name", sorted({*json.loads(result())} - {"schema_version"}))
def test_a_null_anywhere_leaves_a_row_or_a_reason(name: str) -> None:
    found = gather(store_of(a=result(**{name: None})))

    assert len(found.rows) + len(found.skipped) == 1


def test_a_number_that_is_none_is_null() -> None:
    data = result(mean_loss="?").replace(b'"?"', b"NaN")

    (row,) = gather(store_of(a=data)).rows

    assert row.mean_loss is None


def test_a_number_that_no_float_holds_is_null_in_all_of_a_row() -> None:
    huge = b"1" + b"0" * 400
    data = result(mean_loss="?", profile={"operation_shares": "?"}).replace(b'"?"', huge, 1)

    (row,) = gather(store_of(a=data.replace(b'"?"', b"[%s]" % huge))).rows

    assert row.mean_loss is None
    assert row.profile_operation_shares == (inf,)


def test_a_result_that_is_nested_without_an_end_is_skipped() -> None:
    found = gather(store_of(a=b'{"a":' * 100_000))

    assert not found.rows
    assert found.skipped[0].reason.startswith("not JSON")


def test_what_was_imported_stands_behind_what_was_measured() -> None:
    store = store_of(a=result())
    name, data = file_of([Row(source="old.csv", strategy="ddp", imported=True)], "old")
    store.put(name, data)
    store.put("imports/broken.json", b"{")

    found = gather(store)

    assert [row.source for row in found.rows] == [PLACE, f"{name}#old.csv"]
    assert [skipped.name for skipped in found.skipped] == ["imports/broken.json"]
    assert gather(store, sweeps=["trial"]).rows == found.rows[:1]


class Vanishing(MemoryStore):
    """Its objects are listed; reading the second one asks ``then``."""

    def __init__(self, then: Callable[[str], None]) -> None:
        super().__init__()
        self._then = then

    def get(self, name: str) -> bytes:
        if "/b/" in name:
            self._then(name)
        return super().get(name)


def test_a_result_that_was_listed_and_is_gone_when_it_is_read_is_named() -> None:
    def delete(name: str) -> None:
        store.delete(name)

    store = Vanishing(delete)
    for run in "ab":
        store.put(f"sweeps/trial/runs/{run}/result.json", result())

    found = gather(store)

    assert [row.source for row in found.rows] == [PLACE]
    (skipped,) = found.unread_results
    assert (skipped.name, skipped.reason) == (
        "sweeps/trial/runs/b/result.json",
        "it was listed, and then it was not there",
    )


def test_a_store_that_vanishes_mid_way_is_no_small_report() -> None:
    def raise_unavailable(name: str) -> None:
        raise Unavailable("store: gone")

    store = Vanishing(raise_unavailable)
    for run in "abc":
        store.put(f"sweeps/trial/runs/{run}/result.json", result())

    with pytest.raises(Unavailable, match="gone"):
        gather(store)


class FarStore(MemoryStore):
    """Answers as late as a store at the other end of a network; knows which threads asked."""

    def __init__(self, answer_s: float) -> None:
        super().__init__()
        self._answer_s = answer_s
        self.readers: set[int] = set()

    def get(self, name: str) -> bytes:
        time.sleep(self._answer_s)
        self.readers.add(threading.get_ident())
        return super().get(name)


@pytest.mark.parametrize("answer_s", [0.0, 0.003])
def test_of_more_files_than_fit_a_batch_every_one_is_a_row_whether_the_store_is_near_or_far(
    answer_s: float,
) -> None:
    store = FarStore(answer_s)
    places = [f"sweeps/trial/runs/run-{number:04}/result.json" for number in range(300)]
    for place in places:
        store.put(place, result())

    assert [row.source for row in gather(store).rows] == places
    # Where nearness only saves time, a busy machine may take it for distance.
    assert len(store.readers) > 1 or answer_s == 0


def test_a_sweep_whose_ranks_were_spread_says_so_in_its_rows() -> None:
    spec = sweep(spread=True)
    run = run_of(spec)
    data = record(spec, run, measurement(run.run_id)).to_json()
    (row,) = gather(store_of(a=data)).rows
    assert row.spread is True
    (row,) = gather(store_of(a=result())).rows
    assert row.spread is False


def test_a_result_or_an_import_that_no_memory_holds_is_named_and_skipped(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put_results(store)
    names = ["sweeps/trial/runs/huge/result.json", "imports/huge.json", "machines/a/huge.json"]
    for name in names:
        store.put(name, b"")
        os.truncate(tmp_path / name, 1 << 40)
    found = gather(store)
    assert len(found.rows) == 4
    assert {skipped.name for skipped in found.skipped} == set(names)
    assert all("has 1,099,511,627,776 bytes, at most" in skipped.reason for skipped in found.skipped)
