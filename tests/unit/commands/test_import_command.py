"""``longhaul import`` as a person types it: what is printed and stored, and the exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from jobs.cli.__main__ import main
from reporting.results.gathering import gather
from tests.unit.older import METRICS, MORE, RESULT
from tests.unit.printed import checked


@pytest.fixture(autouse=True)
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to stand in, with a folder of older results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "result.json").write_text(RESULT)
    return tmp_path / "older"


def importing(*arguments: str) -> int:
    return main(["import", *arguments, "--store", "store"])


def files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("store").rglob("*.json")}


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(checked("import", capsys.readouterr().out))


def test_older_results_stand_in_the_table_of_the_store() -> None:
    assert importing("older") == 0
    (row,) = gather(LocalStore(Path("store"))).rows
    assert (row.strategy, row.tokens_per_sec, row.sweep) == ("ddp", 8369.455699192402, "older")
    assert (row.imported, row.timing_unit) == (True, "unknown")
    assert row.source.startswith("imports/older-") and row.source.endswith(".json#older/result.json")


def test_importing_again_changes_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    importing("older")
    before = files()
    capsys.readouterr()
    assert importing("older/result.json") == 0
    assert "nothing new: 1 run already in" in capsys.readouterr().out
    assert files() == before


def test_only_what_is_new_is_stored_beside_what_was_there(older: Path) -> None:
    importing("older")
    (older / "metrics.csv").write_text(METRICS)
    assert importing("older") == 0
    rows = gather(LocalStore(Path("store"))).rows
    assert sorted(row.world_size or 0 for row in rows) == [2, 4]
    assert len(files()) == 2


def test_the_same_results_may_count_for_two_groups() -> None:
    importing("older", "--group", "blue", "--vendor", "amd")
    importing("older", "--group", "red")
    rows = gather(LocalStore(Path("store"))).rows
    assert {(row.group, row.vendor) for row in rows} == {("blue", "amd"), ("red", None)}


def test_what_can_not_be_read_is_one_line_and_exit_1(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (older / "torn.json").write_text(RESULT[:50])
    assert importing("older", "nowhere") == 1
    said = capsys.readouterr()
    assert [line.partition(":")[2].split(":")[0].strip() for line in said.err.splitlines()] == [
        "nowhere", "older/torn.json",
    ]  # fmt: skip
    assert "1 run imported" in said.out
    assert len(files()) == 1


def test_what_is_not_mapped_and_what_is_doubted_is_shown(
    older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (older / "result.json").write_text(json.dumps({**json.loads(RESULT), "mood": "fine"}))
    importing("older")
    said = capsys.readouterr().out
    assert "not mapped: mood" in said
    assert "warning: tokens_per_sec is world_size x per_device_batch" in said


def test_json_says_the_same(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (older / "other.json").write_text('{"mood": "fine"}')
    assert importing("older", "--json") == 1
    found = summary(capsys)
    assert (found["num_runs"], found["num_new"]) == (1, 1)
    assert [one["label"] for one in found["unread"]] == ["older/other.json"]
    assert found["stored"] in {f"imports/{name}" for name in files()}
    assert {warning["num_runs"] for warning in found["warnings"]} == {1}


def test_a_mapping_of_ones_own_is_used(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_bytes(MORE)
    (older / "herd.csv").write_text("Strategy,Elephants\nData-Parallel,8000\n")
    assert importing("older/herd.csv", "--mapping", "mine.toml") == 0
    (row,) = gather(LocalStore(Path("store"))).rows
    assert (row.strategy, row.tokens_per_sec) == ("ddp", 8000.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mapping", "nowhere.toml"), "nowhere.toml: No such file or directory; expected a mapping file"),
        (("--mapping", "wrong.toml"), "wrong.toml: 'colums' is not a section"),
        (("--store", "ftp://host/x"), "ftp:// is no kind of store"),
    ],
)
def test_wrong_usage_is_exit_2_and_stores_nothing(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], said: str
) -> None:
    Path("wrong.toml").write_text("[colums]")
    assert main(["import", "older", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert files() == {}


def test_a_store_that_can_not_be_written_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("store").write_text("a file, not a folder")
    assert importing("older") == 1
    assert capsys.readouterr().err.startswith("longhaul import: store: ")


def test_an_import_in_the_store_that_is_damaged_holds_nothing_back() -> None:
    importing("older")
    (path,) = Path("store").rglob("*.json")
    path.write_text("{")
    assert importing("older", "--group", "red") == 0
    found = gather(LocalStore(Path("store")))
    assert len(found.rows) == 1
    assert [skipped.name for skipped in found.skipped] == [f"imports/{path.name}"]


def test_an_import_that_was_damaged_is_mended_by_importing_again() -> None:
    importing("older")
    (path,) = Path("store").rglob("*.json")
    whole = path.read_bytes()
    path.write_text("{")
    assert importing("older") == 0
    assert path.read_bytes() == whole
