"""What an older version stored is read as that version read it: results, checkpoints, reports, imports."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.conftest import strict_json
from tests.unit.older_store import answers, differences, files, longhaul, unpack

LEFT_BY_A_KILLED_SAVE = "runs/recovered/gen/000000000007-t1-0123abcd.99/rank-00000.safetensors"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all tests here, so only what an earlier one does not change may be asked."""
    return unpack(tmp_path_factory.mktemp("older"))


def test_every_question_has_the_answer_that_the_older_version_gave(older: Path) -> None:
    before = files(older / "results")
    asked = answers(older)
    assert len(asked) == 15
    for name, answer in asked.items():
        where = () if answer["command"].startswith("compare") else ("--store", "results")
        said = longhaul(older, *answer["command"].split(), *where, expected=answer["exit_code"])
        assert differences(_read(answer["stdout"]), _read(said), name) == []
    assert files(older / "results") == before, "who asks changes nothing"


def test_a_finished_sweep_has_nothing_to_do(older: Path) -> None:
    before = files(older / "results")
    done = longhaul(older, "sweep", "finished.yaml", "--store", "results", "--json", expected=1)
    runs = {run["run_id"]: run for run in strict_json(done)["runs"]}
    stored = _results(older, "finished")
    assert sorted(run["status"] for run in stored) == ["ok", "ok", "oom"]
    assert differences({run["run_id"]: run for run in stored}, runs) == []
    after = files(older / "results")
    written = "sweeps/finished/sweep.json"  # At each start, with the keys that specs have by now.
    assert differences(json.loads(before.pop(written)), json.loads(after.pop(written))) == []
    assert after == before


def test_a_report_has_the_figures_of_the_older_versions_report(older: Path) -> None:
    longhaul(older, "report", "--store", "results", "--name", "again")
    reports = older / "results" / "reports"
    assert differences(_csv(reports / "all"), _csv(reports / "again")) == []
    for table in ("metrics.parquet", "steps.parquet"):
        was, is_now = (pyarrow.parquet.read_table(reports / name / table) for name in ("all", "again"))
        assert was.num_rows > 0
        assert differences(was.to_pylist(), is_now.to_pylist(), table) == []


def test_an_older_report_is_pulled_and_an_older_import_is_known(older: Path) -> None:
    longhaul(older, "pull", "results/reports/all", "copy")
    assert files(older / "copy") == files(older / "results" / "reports" / "all")
    before = files(older / "results" / "imports")
    longhaul(older, "import", "older/result.json", "--store", "results")
    assert files(older / "results" / "imports") == before


def test_the_collector_takes_what_the_older_version_would_have_taken(tmp_path: Path) -> None:
    older = unpack(tmp_path)
    before = files(older / "results")
    told = json.loads(answers(older)["gc-recovered"]["stdout"])
    assert [objects for one in told["generations"] for objects in one["objects"]] == [LEFT_BY_A_KILLED_SAVE]

    longhaul(older, "checkpoints", "gc", "--run", "recovered", "--store", "results", "--yes", "--json")
    longhaul(older, "checkpoints", "gc", "--run", "stopped", "--store", "results", "--yes", "--json")

    after = files(older / "results")
    assert before.keys() - after.keys() == {LEFT_BY_A_KILLED_SAVE}
    # That they may go is noted first.
    noted = after.keys() - before.keys()
    assert all(name.startswith("runs/recovered/log/") for name in noted)
    longhaul(older, "checkpoints", "verify", "--run", "recovered", "--store", "results")


def test_the_fixture_names_no_machine_and_no_user(tmp_path: Path) -> None:
    texts = {
        name: data
        for name, data in files(unpack(tmp_path)).items()
        if not name.endswith((".png", ".safetensors"))
    }
    assert len(texts) > 100
    foreign = re.compile(rb"/(home|root|tmp|work|Users)/|\b(?!127\.0\.0\.1)\d{1,3}(\.\d{1,3}){3}\b")
    hits = {name: match[0] for name, data in texts.items() if (match := foreign.search(data))}
    assert hits == {}
    owners = {owner for data in texts.values() for owner in re.findall(rb'"owner":"([^"]+):\d+"', data)}
    assert owners == {b"localhost"}


def _read(said: str) -> Any:
    """A table is for people: its words may change, not what is to be done."""
    return strict_json(said) if said.startswith("{") else said.splitlines()[-2:]


def _results(folder: Path, sweep: str) -> list[dict[str, Any]]:
    paths = sorted((folder / "results" / "sweeps" / sweep / "runs").glob("*/result.json"))
    return [json.loads(path.read_text()) for path in paths]


def _csv(report: Path) -> list[dict[str, str]]:
    with (report / "metrics.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert rows
    return rows
