"""Older results, as the older documents show them: what is read, what is believed, what is refused."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporting.importers.contents import ImportProblem, SourceContents
from reporting.importers.documents import read_document
from reporting.importers.grids import read_grids
from reporting.importers.mapping import NameMapping, shipped
from reporting.importers.reading import read_all
from reporting.importers.separated import read_separated
from reporting.importers.spreadsheets import read_spreadsheet
from reporting.importers.trust import trusted
from tests.unit.older import (
    BENCHMARK,
    HEADERS,
    RESULT,
    grid,
    imported,
    merged_bomb,
    other_zip,
    record,
    scalar,
    write_results,
    zip_bomb,
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results")


def test_the_seeds_folder_gives_each_run_once(results: Path) -> None:
    found = imported(results)
    assert [(row.strategy, row.world_size, row.source.rpartition("/")[2]) for row in found.rows] == [
        ("ddp", 2, "result.json"),
        ("ddp", 4, "metrics.csv"),
    ]
    assert [(read.num_runs, read.num_repeated) for read in found.read] == [(1, 0), (2, 1)]
    assert found.unread == ()
    assert all(row.imported and row.status == "ok" and row.group == "imported" for row in found.rows)


def test_the_seeds_ddp_scales_by_73_percent(results: Path) -> None:
    two, four = imported(results).rows
    assert two.scaling_efficiency_pct == 100.0
    assert four.scaling_efficiency_pct == pytest.approx(73.0, abs=0.05)
    assert four.scaling_baseline_world_size == 2


@pytest.mark.parametrize(
    ("strategy", "at_four", "printed_pct", "true_pct"),
    [("ddp", 12_220.0, 36.5, 73.0), ("fsdp", 9_424.0, 34.8, 69.6), ("zero2", 18_147.0, 41.2, 82.4)],
)
def test_the_seeds_other_strategies_scale_by_twice_what_they_print(
    tmp_path: Path, strategy: str, at_four: float, printed_pct: float, true_pct: float
) -> None:
    """They divide by twice the throughput of two GPUs per GPU, taking that run for one on a single GPU."""
    at_two = at_four / (4 * printed_pct / 100)
    rows = [("strategy", "world_size", "tokens_per_sec", "scaling_efficiency_pct")]
    rows += [(strategy, "2", str(at_two), "50.0"), (strategy, "4", str(at_four), str(printed_pct))]
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert imported(path).rows[1].scaling_efficiency_pct == pytest.approx(true_pct, abs=0.05)


def test_throughput_without_grad_accum_is_found_by_its_own_arithmetic(results: Path) -> None:
    for row in imported(results).rows:
        assert row.timing_unit == "unknown"
        assert any("grad_accum 4 is missing" in warning for warning in row.warnings)


def test_a_transfer_rate_that_is_four_bytes_per_token_is_left_out(results: Path) -> None:
    for row in imported(results).rows:
        assert row.h2d_gbps_per_gpu is None
        assert any("h2d_gbps_per_gpu" in warning for warning in row.warnings)


HONEST = {
    "world_size": 2, "per_device_batch": 1, "seq_len": 2048, "grad_accum": 4, "mean_step_time_sec": 2.0,
    "tokens_per_sec": 8192.0, "h2d_gbps_per_gpu": 11.5,
}  # fmt: skip


def test_numbers_that_fit_together_are_believed() -> None:
    found = trusted(HONEST, "result")
    assert (found["timing_unit"], found["warnings"]) == ("optimizer_step", ())
    assert found["h2d_gbps_per_gpu"] == 11.5


@pytest.mark.parametrize(("off", "kept"), [(0.0, False), (1e-12, False), (1e-6, True)])
def test_only_a_rate_that_equals_the_formula_is_left_out(off: float, kept: bool) -> None:
    found = trusted({**HONEST, "h2d_gbps_per_gpu": 4 * 8192 / 2 / 1e9 * (1 + off)}, "result")
    assert ("h2d_gbps_per_gpu" in found) == kept


def test_each_repeat_at_the_smallest_size_has_all_of_its_throughput(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_text("strategy,gpus,tokens/s\nddp,2,8000\nddp,2,9000\nddp,4,17000\n", encoding="utf-8")
    assert [row.scaling_efficiency_pct for row in imported(path).rows] == [100.0, 100.0, 100.0]


def test_throughput_of_all_and_of_each_that_disagree_are_doubted() -> None:
    both = {"world_size": 4, "tokens_per_sec": 100.0, "tokens_per_sec_per_device": 100.0}
    doubt = "tokens_per_sec is 100, but tokens_per_sec_per_device x 4 is 400"
    assert trusted(both, "table")["warnings"] == (doubt,)
    assert trusted({**both, "tokens_per_sec": 400.0}, "table")["warnings"] == ()


def test_numbers_that_fit_no_formula_are_doubted() -> None:
    found = trusted({**HONEST, "tokens_per_sec": 5000.0}, "result")
    assert found["timing_unit"] == "unknown"
    assert "10,000 tokens, expected 16,384" in found["warnings"][0]


def test_without_grad_accumulation_none_is_missing() -> None:
    assert trusted({**HONEST, "grad_accum": 1, "tokens_per_sec": 2048.0}, "result")["warnings"] == ()


def test_a_benchmark_file_over_many_lines_is_read_with_its_sections(tmp_path: Path) -> None:
    path = tmp_path / "benchmark_rocm_20260105_095927.json"
    path.write_text(json.dumps(BENCHMARK, indent=2))
    found = imported(path)
    (row,) = found.rows
    assert (row.platform, row.vendor, row.group, row.model) == ("rocm", "amd", "imported-amd", "llama-3.1-8b")
    assert (row.world_size, row.seq_len, row.mean_step_time_sec) == (8, 8192, 1.25)
    assert (row.tokens_per_sec, row.tokens_per_sec_per_device) == (52_428.8, 6_553.6)
    assert (row.peak_vram_gb, row.device_memory_bytes) == (120.5, 192_000_000_000)
    assert row.raw_step_times == (1.2, 1.25, 1.3)
    assert row.timing_unit == "unknown"
    assert any("synchronised" in warning for warning in row.warnings)
    assert found.read[0].not_mapped == ("performance_metrics.vibes",)


def test_nan_and_null_become_nothing() -> None:
    found = read_document(
        b'{"tokens_per_sec": 5.5, "mean_loss": NaN, "peak_vram_gb": null, "steps": 3}', shipped()
    )
    assert found.runs == ({"tokens_per_sec": 5.5, "steps": 3},)


def test_names_of_folders_say_what_a_result_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "bench-master-zero2-ws4-seq2048_results" / "result.json"
    path.parent.mkdir()
    path.write_text('{"tokens_per_sec": 18147.0}')
    (row,) = imported(path).rows
    assert (row.strategy, row.world_size, row.seq_len) == ("zero2", 4, 2048)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("result.json", RESULT[:100].encode(), "not JSON, or cut off"),
        ("result.json", b"\xff\xfe", "not JSON, or cut off"),
        ("result.json", b"[" * 100_000, "not JSON, or cut off"),
        ("package.json", b'{"name": "left-pad", "dependencies": {}}', "found name, dependencies"),
        ("result.json", b"[1, 2]", "expected an object"),
        ("result.json", b"[]", "expected an object"),
        ("result.json", b'{"schema_version": 1, "run_id": "a"}', "a result of Longhaul itself"),
        ("metrics.csv", b"", "empty"),
        ("metrics.csv", b"\n\n,,\n", "empty"),
        ("metrics.csv", b"colour,shape\nred,round\n", "found colour, shape"),
        ("metrics.csv", b"\xff\xfe\x00", "not a CSV file in UTF-8 or UTF-16"),
        ("metrics.csv", b"gpus;tokens/s\n2;1,234\n", "'1,234' may have a decimal comma, or one that parts"),
        ("metrics.csv", b"gpus;tokens/s\n2;12,5\n2;12.5\n", "some of its numbers have a decimal comma"),
        ("book.xlsx", merged_bomb(), "its merged areas have 17,179,869,184 cells"),
        ("metrics.csv", b"strategy,tokens_per_sec\n", "no run in it"),
        ("book.xlsx", b"", "not an xlsx workbook"),
        ("book.xlsx", grid(HEADERS)[:-200], "not an xlsx workbook, or damaged"),
        ("book.xlsx", other_zip(), "not an xlsx workbook, or damaged"),
        ("book.xlsx", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), "without a password"),
        ("book.xlsx", zip_bomb(), "40 MB when unpacked, expected at most 34 MB"),
        ("book.xlsx", grid(("colour", "shape"), ("red", "round")), "found Sheet: colour, Sheet: shape"),
        ("events.out.tfevents.1.host", b"hello, this is no event file", "damaged, or no event file"),
        ("events.out.tfevents.1.host", scalar("lr", 1, 1.0), "found lr"),
        ("events.out.tfevents.1.host", record(b"\xff\xff\xff"), "no TensorBoard event"),
        ("events.out.tfevents.1.host", b"", "found no scalar"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_its_reason_and_the_rest_is_imported(
    results: Path, name: str, data: bytes, said: str
) -> None:
    (results / "other").mkdir()
    (results / "other" / name).write_bytes(data)
    found = imported(results)
    (problem,) = found.unread
    assert problem.label.startswith("results/other/")
    assert said in problem.reason
    assert len(problem.reason.splitlines()) == 1
    assert len(found.rows) == 2


def test_what_is_not_there_and_what_holds_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    found = imported(tmp_path / "nowhere", tmp_path / "empty", tmp_path / "notes.txt")
    assert [problem.reason.partition(":")[0] for problem in found.unread] == [
        "there is no such file or folder", "nothing to import in it", "not a kind that is read",
    ]  # fmt: skip


def test_a_pipe_by_the_name_of_a_result_is_not_waited_for(results: Path) -> None:
    os.mkfifo(results / "result.json")
    assert len(imported(results).rows) == 2


def test_a_link_out_of_a_folder_brings_in_nothing_that_only_this_user_can_read(
    results: Path, tmp_path: Path
) -> None:
    (tmp_path / "private.csv").write_text("strategy,gpus,tokens/s\nfsdp,8,123\n")
    (results / "more.csv").symlink_to(tmp_path / "private.csv")
    (results / "same.csv").symlink_to(results / "metrics.csv")
    found = imported(results)
    (problem,) = found.unread
    assert (problem.label, len(found.rows)) == ("results/more.csv", 2)
    assert "a link to somewhere else, which is not followed: name what it leads to" in problem.reason
    assert len(imported(results / "more.csv").rows) == 1


def test_a_file_that_is_too_large_is_not_opened(results: Path) -> None:
    with (results / "huge.csv").open("wb") as file:
        file.truncate(65 << 20)
    found = imported(results)
    assert [problem.reason for problem in found.unread] == ["68 MB, expected at most 67 MB"]
    assert len(found.rows) == 2


@pytest.mark.parametrize("read", [read_document, read_separated, read_spreadsheet])
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_no_bytes_make_a_reader_stumble(
    read: Callable[[bytes, NameMapping], SourceContents], data: bytes
) -> None:
    with pytest.raises(ImportProblem):
        read(data, shipped())


def test_runs_with_the_same_rounded_numbers_and_another_configuration_are_two(tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    head = "strategy,world_size,precision,per_device_batch,tokens_per_sec\n"
    first.write_text(f"{head}ddp,2,fp32,1,8000\nddp,2,bf16,1,8000\nddp,2,bf16,2,8000\nddp,2,bf16,2,8000\n")
    second.write_text(f"{head}ddp,2,fp32,4,8000\n")
    alone = imported(first)
    assert [(row.precision, row.per_device_batch) for row in alone.rows] == [
        ("fp32", 1), ("bf16", 1), ("bf16", 2),
    ]  # fmt: skip
    known = {row.run_id or "": row for row in alone.rows}
    again = read_all([first, second], shipped(), name="x", group=None, vendor=None, known=known)
    assert {row.run_id for row in again.rows} - known.keys() == {again.rows[-1].run_id}
    assert again.rows[-1].per_device_batch == 4


def test_what_a_table_leaves_out_of_a_run_makes_no_other_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("strategy,world_size,model,tokens_per_sec\nddp,2,llama-tiny,8000\n")
    (tmp_path / "b.csv").write_text("strategy,world_size,tokens_per_sec\nddp,2,8000\n")
    assert len(imported(tmp_path).rows) == 1


def test_half_a_character_in_a_text_or_in_a_files_name_is_not_stored(tmp_path: Path) -> None:
    """A report could not write it."""
    path = tmp_path / os.fsdecode(b"half\xff.json")
    path.write_text('{"model": "own\\ud800", "tokens_per_sec": 18147.0}')
    (row,) = imported(path).rows
    assert row.model == "own?"
    assert row.source.endswith("/half?.json")


def test_a_store_of_ours_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "runs/r/parts/steps").mkdir(parents=True)
    (tmp_path / "runs/r/events.json").write_text("{}")
    (problem,) = imported(tmp_path).unread
    assert problem.reason.startswith("a store of Longhaul, which needs no import")


def test_runs_of_one_cell_are_its_repeats(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("strategy,world_size,tokens_per_sec\nddp,2,8000\nddp,2,8100\nfsdp,2,7000\n")
    rows = imported(path).rows
    assert [row.repeat for row in rows] == [0, 1, 0]
    assert rows[0].cell_id == rows[1].cell_id != rows[2].cell_id
    assert len({row.run_id for row in rows}) == 3


def _notes(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(text, encoding="utf-8")
    (read,) = imported(path).read
    return read.notes


def test_rows_that_are_not_taken_in_are_named(tmp_path: Path) -> None:
    head = "strategy,world_size,tokens_per_sec\n"
    lines = "ddp,2,800\nfsdp,2,OOM\nzero1,2,\nAverage,,800\nzero2,2,900\n\nend,,\n"
    assert _notes(tmp_path / "metrics.csv", head + lines) == (
        "row 8 stands below an empty row and has no measurement: the table ends there",
        "left out, since it sums up others: row 5",
        "left out, without a measurement: rows 3, 4",
    )


def test_columns_that_are_not_taken_in_are_named(tmp_path: Path) -> None:
    lines = "strategy,ddp,fsdp,zero1\nworld_size,2,2,2\ntokens_per_sec,800,,700\n"
    assert _notes(tmp_path / "metrics.csv", lines) == ("left out, without a measurement: column 3",)


def test_steps_without_a_number_are_named(tmp_path: Path) -> None:
    notes = _notes(tmp_path / "log.csv", "step,loss,tokens/s\n1,3,10\n2,2.9,11\n,2.8,12\n")
    assert "left out, without a step: row 4" in notes


def test_objects_and_values_that_are_not_taken_in_are_named(tmp_path: Path) -> None:
    found = [{"tokens_per_sec": 5}, {"model": "a"}, {"raw_step_times": [1] * 100_001}, {"model": "b"}]
    assert _notes(tmp_path / "result.json", json.dumps(found)) == (
        "raw_step_times has 100,001 values: only the first 100,000 are read",
        "left out, without a measurement: results 2, 4",
    )


def test_a_sheet_from_which_nothing_is_taken_is_named() -> None:
    mapping = shipped()
    found = read_grids(
        [("runs", [("gpus", "tokens/s"), (2, 5)]), ("notes", [("it", "was"), ("a", "b")])], mapping
    )
    assert "notes: nothing is taken from it: no run in it" in found.notes


def test_folders_that_are_too_deep_are_named(tmp_path: Path) -> None:
    deep = tmp_path.joinpath("results", *"abcdefghijklmn")
    deep.mkdir(parents=True)
    (deep / "result.json").write_text(RESULT, encoding="utf-8")
    reasons = [one.reason for one in imported(tmp_path / "results").unread]
    assert "more than 12 folders deep: what lies in it is not read" in reasons


def test_our_own_table_keeps_what_was_asked_and_what_was_short(tmp_path: Path) -> None:
    lines = [
        "strategy,world_size,per_device_batch,grad_accum,tokens_per_sec,micro_batch_asked,rung",
        "ddp,1,8,2,1000,max,",
        "ddp,1,8,2,1001,,",
        "ddp,1,8,2,1002,,1",
    ]
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(lines) + "\n")
    found = imported(path).rows
    assert [(row.micro_batch_asked, row.rung) for row in found] == [("max", None), (None, None), (None, 1)]
    assert len({row.cell_id for row in found}) == 3
