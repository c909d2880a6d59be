"""``longhaul report`` and ``longhaul pull`` as stories: a store in, a report out, and what can go wrong."""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from jobs.cli.__main__ import main
from tests.conftest import Golden
from tests.unit.builders import measurement, put_fixed_results, put_results, record, run_of, sweep
from tests.unit.printed import checked


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """The report of it is there."""
    store = LocalStore(tmp_path_factory.mktemp("fixed"))
    put_fixed_results(store)
    assert report(store) == 0
    return store


def report(store: LocalStore, *flags: str) -> int:
    return main(["report", "--store", store.url, *flags])


def files(store: LocalStore, name: str = "trial") -> dict[str, bytes]:
    return {found: store.get(found) for found in store.list(f"reports/{name}")}


def put(store: LocalStore, place: str, **changes: Any) -> None:
    run = run_of(sweep())
    plain = record(sweep(), run, measurement(run.run_id)).to_dict()
    store.put(f"sweeps/trial/runs/{place}/result.json", json.dumps({**plain, **changes}).encode())


def test_a_sweep_becomes_a_report_of_its_name(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_results(store)

    assert report(store) == 0

    names = {name.removeprefix("reports/trial/") for name in files(store)}
    assert {"metrics.parquet", "metrics.csv", "findings.json", "report.md", "index.html"} <= names
    assert not any(name.startswith("plots/") for name in names), "one measured cell is no chart"
    printed = capsys.readouterr().out
    assert "The only group is local" in printed
    assert "1 cell of 2 has no numbers: 1 crash." in printed
    assert f"report: {store.url}/reports/trial" in printed


def test_a_report_of_a_store_that_may_only_be_read_goes_into_a_folder(
    store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_results(store)
    before = sorted(store.contents())
    folder = tmp_path / "mine"

    assert report(store, "--to", str(folder)) == 0

    assert sorted(store.contents()) == before
    assert f"report: {folder}" in capsys.readouterr().out
    assert {"index.html", "report.md", "metrics.parquet"} <= {path.name for path in folder.iterdir()}
    mine = folder / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    assert report(store, "--to", str(folder)) == 0
    assert "0 files fetched" in capsys.readouterr().out
    assert mine.exists()
    assert report(store, "--to", str(folder), "--pull", str(folder)) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_what_programs_read_is_json(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_results(store)

    assert report(store, "--json") == 0

    found = checked("report", capsys.readouterr().out)
    assert found["place"] == f"{store.url}/reports/trial"
    assert [cell["status"] for cell in found["cells"]] == ["ok", "crash"]


def test_the_same_results_give_the_same_files(store: LocalStore) -> None:
    put_results(store)
    assert report(store) == 0
    first = files(store)

    assert report(store) == 0

    assert files(store) == first


@pytest.mark.parametrize("file", ["report.md", "metrics.csv", "findings.json", "index.html"])
def test_the_report_of_a_fixed_store_is_the_one_that_was_reviewed(
    fixed: LocalStore, golden: Golden, file: str
) -> None:
    """All of it but the pictures' last digits, which a processor of another kind may round otherwise."""
    text = fixed.get(f"reports/all/{file}").decode()
    # Its folder has the user's name in it, in Markdown with its underscores escaped.
    for place in (fixed.url, fixed.url.replace("_", r"\_")):
        text = text.replace(place, "STORE")
    text = re.sub(r"<svg .*?</svg>", "<svg/>", text, flags=re.DOTALL)
    if file == "findings.json":
        text = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.9g}", text)

    golden(f"report_{file}", text)


def test_what_was_measured_can_be_measured_again_from_its_report(
    fixed: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"{fixed.url}/reports/all", str(tmp_path)]) == 0
    shipped = ["--cluster", "cluster.yaml", "--set", "groups=auto", "--dry-run"]

    assert main(["sweep", str(tmp_path / "specs/trial.yaml"), *shipped]) == 0

    assert "zero2" in capsys.readouterr().out


def test_a_report_that_somebody_spoilt_keeps_no_other_one_back(
    store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_results(store)
    assert report(store) == 0
    store.put("reports/a/manifest.json", b'{"schema_version": 1, "files": {"../x": {}}}')
    assert main(["pull", store.url, str(tmp_path / "here")]) == 1
    assert (tmp_path / "here/trial/index.html").exists()
    assert capsys.readouterr().err.startswith("longhaul pull: reports/a/manifest.json")


@pytest.mark.parametrize("file", ["manifest.json", "index.html"])
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_a_report_in_which_somebody_planted_what_is_no_file_keeps_no_other_one_back(
    plant: Callable[[Path], None],
    file: str,
    store: LocalStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_results(store)
    assert report(store, "--name", "a") == report(store, "--name", "b") == 0
    planted = store.root / "reports/a" / file
    planted.unlink()
    plant(planted)
    assert main(["pull", store.url, str(tmp_path / "here")]) == 1
    assert (tmp_path / "here/b/index.html").exists()
    assert f"reports/a/{file} is a" in capsys.readouterr().err


def test_without_results_there_is_no_report(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(store) == 1

    assert "there are no results; `longhaul sweep` or `longhaul import`" in capsys.readouterr().err
    assert files(store) == {}


def test_a_sweep_that_is_not_there_is_named(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    put_results(store)

    assert report(store, "--sweep", "nobody") == 1

    assert "sweep 'nobody': there are no results" in capsys.readouterr().err


def test_results_none_of_which_can_be_read_are_listed(
    store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put("sweeps/trial/runs/a/result.json", b"{")

    assert report(store) == 1

    assert "sweeps/trial/runs/a/result.json: not JSON" in capsys.readouterr().err


def test_a_broken_result_among_good_ones_is_named_and_counted(
    store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_results(store)
    store.put("sweeps/trial/runs/broken/result.json", b"{")
    store.put("sweeps/trial/runs/newer/result.json", b'{"schema_version": 99}')

    assert report(store) == 0

    assert "2 files could not be read and are not in this report." in capsys.readouterr().out
    page = store.get("reports/trial/index.html").decode()
    assert "sweeps/trial/runs/broken/result.json" in page
    assert "schema_version 99, expected 1" in page


def test_two_sweeps_are_reported_together_or_each_alone(store: LocalStore) -> None:
    put_results(store)
    put(store, "x", sweep="other", cell_id="c", run_id="r")
    store.put("sweeps/other/runs/x/result.json", store.get("sweeps/trial/runs/x/result.json"))
    store.delete("sweeps/trial/runs/x/result.json")

    assert report(store) == 0
    assert report(store, "--sweep", "other") == 0
    assert report(store, "--sweep", "other", "--name", "mine") == 0

    assert files(store, "all") and files(store, "other") and files(store, "mine")


@pytest.mark.parametrize("name", ["a b", "a/b", "<b>bold</b>", "naïve", "$x^2$", "'\"&", "../.."])
def test_names_are_shown_as_they_are_and_do_nothing(store: LocalStore, name: str) -> None:
    put(store, "a", model=name, group=name, sweep=name)

    assert report(store, "--name", "hostile") == 0

    page = store.get("reports/hostile/index.html").decode()
    assert "<b>bold</b>" not in page


@pytest.mark.parametrize(
    "field", ["tokens_per_sec", "mean_step_time_sec", "peak_vram_gb", "mean_loss", "model"]
)
def test_a_null_where_a_number_should_be_is_no_reason_for_no_report(store: LocalStore, field: str) -> None:
    put(store, "a", **{field: None})

    assert report(store, "--name", "null") == 0


@pytest.fixture
def sweeping(store: LocalStore) -> Iterator[None]:
    """Results come in for as long as the test goes on."""
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            put(store, f"run{number}", run_id=f"r{number}", repeat=number)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    yield
    is_over.set()
    thread.join(30)


@pytest.mark.usefixtures("sweeping")
def test_a_report_while_a_sweep_writes_is_whole(store: LocalStore, tmp_path: Path) -> None:
    put_results(store)

    for _ in range(3):
        assert report(store, "--pull", str(tmp_path / "copy")) == 0

    assert (tmp_path / "copy/index.html").exists()


def test_a_store_that_can_no_longer_be_written_is_an_error(
    store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_results(store)
    (store.root / "reports").write_text("a file where a folder should be")

    assert report(store) == 1

    assert "longhaul report: store: " in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report", "--store", "ftp://x"], ["pull", "ftp://x", "copy"]])
def test_a_store_of_no_kind_is_wrong_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2

    assert "ftp:// is no kind of store" in capsys.readouterr().err


def test_all_reports_are_pulled_or_the_one_that_is_named(
    store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_results(store)
    assert main(["pull", store.url, str(tmp_path / "copy")]) == 1
    assert "there is no report; `longhaul report` makes one" in capsys.readouterr().err
    assert report(store) == 0
    assert report(store, "--name", "other") == 0
    capsys.readouterr()

    assert main(["pull", store.url, str(tmp_path / "all")]) == 0
    assert main(["pull", f"{store.url}/reports/other", str(tmp_path / "one"), "--json"]) == 0
    assert main(["pull", f"{store.url}/reports/nobody", str(tmp_path / "one")]) == 1

    assert (tmp_path / "all/trial/index.html").exists()
    assert (tmp_path / "one/index.html").exists()
    printed = capsys.readouterr()
    assert checked("pull", printed.out.splitlines()[-1])["report"] == "other"
    assert "there is no report 'nobody'; there are other, trial" in printed.err


# Both fill gigabytes: the first once it is parsed, the second once each number has a line with its blanks.
@pytest.mark.parametrize(
    "spec", [b"[" + b"[[]]," * (2**22 // 3 + 1) + b"[]]", b"[" * 900 + b"0," * 10_000 + b"0" + b"]" * 900]
)
def test_a_spec_that_somebody_planted_to_fill_the_memory_is_left_out_of_the_report(
    spec: bytes, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    put_results(store)
    store.put("sweeps/trial/sweep.json", b'{"schema_version": 1, "runs": [], "spec": %s}' % spec)
    assert main(["report", "--store", str(tmp_path / "store"), "--to", str(tmp_path / "report")]) == 0
    assert not (tmp_path / "report/specs").exists()
