"""``longhaul runs``: what a store holds, and how it is doing, also where somebody else has written there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Commit, Generation
from checkpointing.stores.contract import Store, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.doctor.security.bucket_trial import MARK, RECORD
from jobs.listing.names import find
from jobs.listing.reading import read
from jobs.listing.text import listed_text
from tests.unit.builders import measurement, record, run_of, sweep
from tests.unit.older_store import unpack
from tests.unit.printed import checked

NOW = 1_800_000_000.0


def begin(store: Store, run: str, *, step: int = 0, age_s: float = 0.0) -> None:
    repository = Repository(store, run, clock=lambda: NOW - age_s)
    term = repository.take_over("somebody")
    if step:
        repository.append(Commit(generation=generation(step, term, NOW - age_s)), term=term)


def generation(step: int, term: int, at_s: float) -> Generation:
    return Generation(
        name=f"{step:012d}-t{term}-aaaa.1", step=step, term=term, number=1, committed_s=at_s, num_bytes=1,
        manifest_digest="0" * 64,
    )  # fmt: skip


def text(store: Store, last: int = 50) -> str:
    return listed_text(read(store, find(store), lambda: NOW), store.url, last)


def test_the_newest_run_comes_first_with_its_step_and_its_newest_checkpoint() -> None:
    store = MemoryStore()
    begin(store, "old", step=7, age_s=7200)
    begin(store, "new", step=9, age_s=60)
    begin(store, "bare")
    lines = text(store).splitlines()
    assert [line.split()[0] for line in lines] == ["run", "new", "old", "bare"]
    assert "000000000007-t1-aaaa.1" in lines[2]
    assert "2 h ago" in lines[2]
    assert "none" in lines[3]


def test_a_group_that_a_driver_named_has_a_column() -> None:
    store = MemoryStore()
    begin(store, "here", step=7)
    assert "group" not in text(store)
    begin(store, "there", step=9)
    store.put("runs/there/status.json", b'{"attempt": 1, "group": "amd", "stage": "failed"}')
    lines = text(store).splitlines()
    assert lines[0].split()[:3] == ["run", "state", "group"]
    assert ["amd" in line for line in lines[1:]] == [False, True]


def test_a_store_of_an_older_version_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpack(tmp_path))
    assert main(["runs", "--json"]) == 0
    told = checked("runs", capsys.readouterr().out)
    states = {one["run"]: (one["state"], one["step"], one["num_steps"]) for one in told["runs"]}
    assert states == {
        "recovered": ("finished", 80, 80),
        "stopped": ("stopped at step 43 (longhaul stop)", 43, 80),
        "whole": ("finished", 80, 80),
    }
    sweeps = {one["sweep"]: (one["state"], one["num_measured"], one["num_runs"]) for one in told["sweeps"]}
    assert sweeps == {"finished": ("done", 3, 3), "interrupted": ("unfinished", 1, 2)}
    assert told["is_cut"] is False


def test_a_sweep_says_when_its_newest_result_came() -> None:
    store, spec = MemoryStore(), sweep(repeats=1)
    run = run_of(spec, 1)
    store.put(
        f"sweeps/trial/runs/{run.name}/result.json", record(spec, run, measurement(run.run_id)).to_json()
    )
    store.put("sweeps/trial/sweep.json", json.dumps({"runs": [run.name, "later"]}).encode())
    (line,) = read(store, find(store), lambda: NOW).sweeps
    assert (line.state, line.num_measured, line.num_runs) == ("unfinished", 1, 2)
    assert line.age_s is not None


def test_an_empty_store_says_what_puts_something_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--store", str(tmp_path / "none")]) == 0
    assert "no runs and no sweeps; `longhaul train`" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


def test_what_others_left_in_a_store_is_said_and_stops_nobody(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    begin(store, "good", step=3)
    store.put("runs/torn/log/000000000001.json", b"{" * 10_000)
    store.put("runs/empty/log/000000000001.json", b"")
    store.put("runs/list/log/000000000001.json", b"[1, 2]")
    store.put("runs/good/status.json", b'{"step": "many", "stage": "\\u001b[2J", "told_s": "x"}')
    store.put("runs/no-log/parts/x.parquet", b"")
    store.put("sweeps/torn/sweep.json", b"[" * 100_000)
    store.put("sweeps/other/sweep.json", b'{"runs": {"a": 1}}')
    store.put("sweeps/odd/sweep.json", b'{"runs": [1, null, "x"]}')
    (tmp_path / "runs" / "a\x1b[31m").mkdir()
    (tmp_path / "runs" / "a\x1b[31m" / "log").mkdir()
    (tmp_path / "runs" / "a\x1b[31m" / "log" / "000000000001.json").write_bytes(b"{}")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")

    listed = read(store, find(store), lambda: NOW)

    assert {line.run: line.step for line in listed.runs} == {"good": 3, "torn": 0, "empty": 0, "list": 0}
    assert {line.sweep: line.is_readable for line in listed.sweeps} == {
        "torn": False, "other": False, "odd": True,
    }  # fmt: skip


def test_a_list_is_bounded_and_says_so() -> None:
    store = MemoryStore()
    for number in range(30):
        begin(store, f"run-{number:02}", step=1, age_s=number)
    few = find(store, most_runs=10)
    assert (len(few.runs), few.is_cut) == (10, True)
    assert find(store, most_names=20).is_cut
    assert not find(store).is_cut
    shown = text(store, last=3).splitlines()
    assert [line.split()[0] for line in shown[1:4]] == ["run-00", "run-01", "run-02"]
    assert shown[4] == "and 27 older runs; --last N shows more"
    cut = listed_text(read(store, few, lambda: NOW), "x", 50)
    assert "holds more than is read" in cut


class Away(MemoryStore):
    def get(self, name: str) -> bytes:
        raise Unavailable("store: away")

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        yield from ("runs/a/log/000000000001.json",) if prefix == "runs" else ()


def test_a_store_that_is_away_is_no_empty_one() -> None:
    store = Away()
    with pytest.raises(Unavailable):
        read(store, find(store), lambda: NOW)


@pytest.mark.parametrize("last", ["0", "-1", "x", "٣", "1e3", "9" * 5000])
def test_a_number_of_lines_that_is_none_is_refused(last: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "--last", last])
    assert ended.value.code == 2


def test_what_the_doctor_keeps_in_a_bucket_is_no_run() -> None:
    store = MemoryStore()
    store.put(RECORD, MARK)
    assert find(store).runs == set()
