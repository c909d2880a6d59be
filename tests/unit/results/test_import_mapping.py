"""Which name means which column, what users may add to that, and what an import leaves in a store."""

from pathlib import Path
from typing import Any

import pytest

from reporting.importers.mapping import MappingError, read_mapping, shipped
from reporting.results.imported import file_of, read_imported
from reporting.results.records import RecordError
from reporting.results.rows import Row
from tests.unit.older import MORE, imported, write_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results")


def test_a_mapping_of_ones_own_is_added_to_ours_and_wins(tmp_path: Path) -> None:
    mapping = shipped().extended(read_mapping(MORE, "mine.toml"))
    path = tmp_path / "run-16-devices.csv"
    path.write_text("Strategy,Device,T_iter,Elephants\nData-Parallel,Abacus 3,512,8000\n")
    (row,) = imported(path, mapping=mapping).rows
    assert (row.strategy, row.vendor, row.world_size) == ("ddp", "cpu", 16)
    assert (row.mean_step_time_sec, row.tokens_per_sec) == (0.512, 8000.0)


def test_a_mapping_may_be_json() -> None:
    mapping = read_mapping(b'{"columns": {"mean_loss": ["sadness"]}}', "mine.json")
    target = mapping.target("Sadness")
    assert target is not None and target.column == "mean_loss"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[colums]", "mine.toml: 'colums' is not a section; did you mean 'columns'?"),
        (
            "[columns]\ntokens_per_se = ['a']",
            "'tokens_per_se' is not a column; did you mean 'tokens_per_sec'?",
        ),
        ("[columns]\nmfu = 'a'", "mine.toml: columns.mfu: expected a list of names"),
        ("[columns]\nmfu = [3]", "columns.mfu: 3 is neither a name"),
        ("[columns]\nmean_loss = [{name = 'a', unit = 'ms'}]", "'ms' is no unit of it (it has none)"),
        ("[values]\nstrategy = 'ddp'", "mine.toml: values: strategy: expected a table"),
        ("[values.colour]\nred = 'ddp'", "values: 'colour' is not a column"),
        ("[vendors]\nx = 3", "vendors.x: 3 is not a text"),
        ("[paths]\npatterns = ['(']", "'(' is no pattern"),
        ("[paths]\npatterns = ['(?P<colour>red)']", "'colour' is not a column"),
        ("[paths]\npatterns = ['(?P<step>5)']", "'step' is not a column; did you mean 'steps'?"),
        ("= nonsense", "neither TOML nor JSON"),
    ],
)
def test_a_wrong_mapping_says_where_and_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(MappingError) as error:
        read_mapping(text.encode(), "mine.toml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("labels", "column", "factor"),
    [
        (("train_step_timing in s",), "mean_step_time_sec", 1.0),
        (("Step Time (ms)", "avg"), "mean_step_time_sec", 1e-3),
        (("Avg.", "Step-Time [us]"), "mean_step_time_sec", 1e-6),
        (("Peak Memory (MiB)",), "peak_vram_gb", 2**20 / 1e9),
        (("peak_memory_allocated_bytes",), "peak_vram_gb", 1e-9),
        (("Tokens/sec/GPU",), "tokens_per_sec_per_device", 1.0),
        (("gpu_info", "name"), "device_name", 1.0),
    ],
)
def test_a_name_is_known_in_any_spelling_with_its_unit(
    labels: tuple[str, ...], column: str, factor: float
) -> None:
    target = shipped().target(*labels)
    assert target is not None
    assert (target.column, target.factor) == (column, pytest.approx(factor))


@pytest.mark.parametrize(
    "labels",
    [("val", "loss"), ("Validation", "metrics", "loss"), ("Max", "Throughput"), ("Std", "Step Time (ms)")],
)
def test_a_label_that_tells_which_number_is_meant_is_not_left_out(labels: tuple[str, ...]) -> None:
    assert shipped().target(labels[-1]) is not None
    assert shipped().target(*labels) is None


@pytest.mark.parametrize("label", ["Step Time (furlongs)", "Tokens", "", "(ms)", "Throughput GB/s"])
def test_a_name_that_is_only_like_a_known_one_is_not_mapped(label: str) -> None:
    assert shipped().target(label) is None


def test_what_is_stored_is_read_again_as_it_was(results: Path) -> None:
    rows = imported(results, group="old").rows
    name, data = file_of(rows, "results")
    again = read_imported(data, name)
    assert [row.source for row in again] == [f"{name}#{row.source}" for row in rows]
    assert [row_without_source(row) for row in again] == [row_without_source(row) for row in rows]
    assert file_of(rows, "results") == (name, data)


def row_without_source(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__ if name != "source"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "not an import"),
        (b'{"format": "longhaul import", "version": 2}', "version 2"),
        (b'{"format": "longhaul import", "version": 1}', "without rows"),
        (b'{"format": "longhaul import", "version": 1, "rows": [3]}', "no object"),
        (b'{"format": "longhaul import", "version": 1, "rows": [{"steps": "many"}]}', "steps is 'many'"),
        (
            b'{"format": "longhaul import", "version": 1, "rows": [{"raw_step_times": ["a"]}]}',
            "raw_step_times",
        ),
        (
            b'{"format": "longhaul import", "version": 1, "rows": [{"strategy": "a\\ud800"}]}',
            "not JSON in UTF-8",
        ),
    ],
)
def test_a_stored_import_that_is_none_says_why(data: bytes, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        read_imported(data, "imports/a.json")
