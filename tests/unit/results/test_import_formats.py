"""Sheets, tables and logs as other tools write them: wherever their headers are, and whoever wrote them."""

import io
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook
from tensorboardX import SummaryWriter

from reporting.importers.contents import ImportProblem
from reporting.importers.mapping import read_mapping, shipped
from reporting.importers.separated import read_separated
from reporting.importers.spreadsheets import read_spreadsheet
from tests.unit.older import HEADERS, events, grid, imported, nemo, saved, scalar, tensor, workbook


def test_a_sheet_is_read_wherever_its_headers_are_and_in_whatever_units() -> None:
    data = grid(
        ("MI300X nightly",), (), ("Model", "Llama 3.1 8B", "Precision", "BF16"), (),
        HEADERS,
        (8, "FSDP", 512.0, "65,536", 100.0, "41.5 %", 5600),
        (4, "ZeRO-2", "0.6 s", 30_000, "96 GB", 0.38 * 100, 2800),
        (), ("made by hand",),
    )  # fmt: skip
    found = read_spreadsheet(data, shipped())
    first, second = found.runs
    assert first == {
        "model": "llama-3.1-8b", "precision": "bf16", "world_size": 8, "strategy": "fsdp",
        "mean_step_time_sec": 0.512, "tokens_per_sec": 65_536.0, "peak_vram_gb": pytest.approx(107.3741824),
        "mfu": pytest.approx(0.415),
    }  # fmt: skip
    assert (second["strategy"], second["mean_step_time_sec"], second["peak_vram_gb"]) == ("zero2", 0.6, 96.0)
    assert found.not_mapped == ("Sheet: Wattage",)


def test_merged_cells_speak_for_all_that_they_cover() -> None:
    rows = (
        ("Strategy", "GPUs", "Step Time (ms)", None, "Throughput [tok/s]"),
        (None, None, "Mean", "P95", None),
        ("ddp", 2, 500, 520, 8000),
        (None, 4, 600, 640, 12000),
    )
    merged = [("S", area) for area in ("A1:A2", "B1:B2", "C1:D1", "E1:E2", "A3:A4")]
    first, second = read_spreadsheet(workbook({"S": rows}, merged), shipped()).runs
    assert first == {
        "strategy": "ddp", "world_size": 2, "mean_step_time_sec": 0.5, "step_time_p95_sec": 0.52,
        "tokens_per_sec": 8000.0,
    }  # fmt: skip
    assert (second["strategy"], second["world_size"]) == ("ddp", 4)


def test_of_several_sheets_the_one_without_numbers_is_about_the_others() -> None:
    sheets = {
        "Setup": [("GPU", "AMD Instinct MI300X"), ("Num GPUs", 8), ("Sequence length", 8192)],
        "Runs": [("Strategy", "Step Time (ms)"), ("ddp", 500), ("fsdp", 520), ("Average", 510)],
        "Kernels": [("KernelName", "Calls"), ("gemm", 12)],
    }
    found = read_spreadsheet(workbook(sheets), shipped())
    assert [run["strategy"] for run in found.runs] == ["ddp", "fsdp"]
    assert all(run["world_size"] == 8 and run["device_name"] == "AMD Instinct MI300X" for run in found.runs)
    assert found.not_mapped == ("Kernels: KernelName", "Kernels: Calls")


def test_headers_may_stand_in_a_column() -> None:
    data = grid(
        ("Metric", "run A", "run B"), ("Step Time (ms)", 500, 510), ("Tokens/s", 8000, 7900), ("GPUs", 2, 2)
    )
    assert [run["tokens_per_sec"] for run in read_spreadsheet(data, shipped()).runs] == [8000.0, 7900.0]


def test_a_cell_that_is_shown_as_a_percentage_is_one() -> None:
    book = Workbook()
    for row in (("GPUs", "MFU (%)", "Step time"), (8, 0.415, 0.5)):
        book.active.append(row)
    book.active["B2"].number_format = "0.0%"
    assert read_spreadsheet(saved(book), shipped()).runs[0]["mfu"] == pytest.approx(0.415)


def test_a_sheet_with_step_numbers_is_one_run() -> None:
    rows = [("Step", "Time (us)", "Step Time (ms)", "Loss")]
    rows += [(step, 1, 9_000 if step < 2 else 500, 8 - step / 10) for step in range(20)]
    found = read_spreadsheet(grid(*rows), shipped())
    (run,) = found.runs
    assert (run["steps"], run["warmup_steps"], run["mean_step_time_sec"]) == (18, 2, 0.5)
    assert (run["loss_first"], run["loss_last"]) == (7.8, 6.1)
    assert "the first 2 are taken for warm-up" in found.notes[0]


def test_what_a_column_can_not_hold_is_named() -> None:
    found = read_separated(b"gpus,tokens/s\n2.5,8000\n2,fast\n", shipped())
    assert found.runs == ({"tokens_per_sec": 8000.0},)
    assert found.notes == (
        "world_size is '2.5', expected a whole number",
        "tokens_per_sec is 'fast', expected a number",
        "left out, without a measurement: row 3",
    )


@pytest.mark.parametrize(
    ("header", "value"),
    [("steps", "1e300"), ("gpus", "0"), ("gpus", "-2"), ("peak memory", "-1 GB"), ("steps", "many")],
)
def test_what_can_not_be_is_left_out_and_named(header: str, value: str) -> None:
    found = read_separated(f"tokens/s,{header}\n8000,{value}\n".encode(), shipped())
    assert found.runs == ({"tokens_per_sec": 8000.0},)
    assert value in found.notes[0]


def test_a_long_table_of_steps_holds_a_run_per_configuration() -> None:
    rows = [(name, step, time) for name, time in (("ddp", 0.5), ("fsdp", 0.7)) for step in range(10)]
    text = "\n".join(f"{name},{step},{time}" for name, step, time in rows)
    found = read_separated(f"strategy,step,step time\n{text}\n".encode(), shipped())
    seen = [(run["strategy"], run["mean_step_time_sec"], run["steps"]) for run in found.runs]
    assert seen == [("ddp", pytest.approx(0.5), 9), ("fsdp", pytest.approx(0.7), 9)]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_any_usual_separator_will_do(separator: str) -> None:
    data = f"strategy{separator}tokens/s\nddp{separator}8000\n".encode("utf-8-sig")
    assert read_separated(data, shipped()).runs == ({"strategy": "ddp", "tokens_per_sec": 8000.0},)


HEADER = "strategy;gpus;tokens/s;step time (ms)\n"


@pytest.mark.parametrize(
    "rows",
    [
        "ddp;2;8.369,5;489,4\nfsdp;2;1.234,0;500\n",
        "ddp;2;8369,5;489,4\nfsdp;2;1234;500\n",
        "ddp;2;8369,5 ;489,4 ms\nfsdp;2;1.234;500\n",
    ],
)
def test_a_decimal_comma_is_known_by_the_numbers_of_the_whole_file(rows: str) -> None:
    first, second = read_separated((HEADER + rows).encode(), shipped()).runs
    assert (first["tokens_per_sec"], first["mean_step_time_sec"]) == (8369.5, pytest.approx(0.4894))
    assert second["tokens_per_sec"] == 1234.0


def test_a_decimal_point_is_known_in_the_same_way() -> None:
    (run,) = read_separated(f"{HEADER}ddp;2;8,369.5;489\n".encode(), shipped()).runs
    assert run["tokens_per_sec"] == 8369.5
    (run,) = read_separated(b'gpus,tokens/s\n2,"8,369"\n', shipped()).runs
    assert run["tokens_per_sec"] == 8369.0
    (run,) = read_separated(f"{HEADER}ddp;2;8,369;489.5\n".encode(), shipped()).runs
    assert run["tokens_per_sec"] == 8369.0


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_cell_of_very_many_digits_is_no_number_to_look_at(separator: str) -> None:
    """Matching it took minutes."""
    header, digits = separator.join(["gpus", "tokens/s", "note"]), "9" * 130_000 + "!"
    found = read_separated(f"{header}\n{separator.join(['2', '8000', digits])}\n".encode(), shipped())
    assert [run["tokens_per_sec"] for run in found.runs] == [8000.0]


@pytest.mark.parametrize(("decimal", "tokens_per_sec"), [(",", 1.234), (".", 1234.0)])
def test_what_the_numbers_do_not_say_the_mapping_does(decimal: str, tokens_per_sec: float) -> None:
    mapping = shipped().extended(read_mapping(f'[numbers]\ndecimal = "{decimal}"\n'.encode(), "m.toml"))
    (run,) = read_separated(b"gpus;tokens/s\n2;1,234\n", mapping).runs
    assert run["tokens_per_sec"] == tokens_per_sec


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_a_table_is_read_in_the_encodings_that_spreadsheets_write(encoding: str) -> None:
    data = "strategy,tokens/s,Gerät\nddp,8000,schön\n".encode(encoding)
    found = read_separated(data, shipped())
    assert found.runs == ({"strategy": "ddp", "tokens_per_sec": 8000.0},)
    assert found.not_mapped == ("Gerät",)
    assert found.notes == (
        ("it is not in UTF-8, so it was read as Latin-1",) if encoding == "latin-1" else ()
    )


@pytest.mark.parametrize("decimal", [",", "."])
def test_a_point_that_may_part_the_thousands_of_a_file_with_semicolons_is_asked_for(decimal: str) -> None:
    data = b"gpus;tokens/s\n2;8.369\n"
    with pytest.raises(ImportProblem, match=r"'8\.369' may have a decimal point, or one that parts"):
        read_separated(data, shipped())
    mapping = shipped().extended(read_mapping(f'[numbers]\ndecimal = "{decimal}"\n'.encode(), "m.toml"))
    (run,) = read_separated(data, mapping).runs
    assert run["tokens_per_sec"] == (8369.0 if decimal == "," else 8.369)
    for known in (b"2;8.369\n2;8.36\n", b"2;8.369\n4;0.369\n"):
        assert read_separated(b"gpus;tokens/s\n" + known, shipped()).runs[0]["tokens_per_sec"] == 8.369


def test_a_number_beyond_all_measurements_is_left_out_and_the_rest_is_read() -> None:
    found = read_separated(b"strategy,tokens/s\nddp,1e300\nfsdp,100\nzero1,1e-200\n", shipped())
    assert [run["strategy"] for run in found.runs] == ["fsdp"]
    assert "tokens_per_sec is '1e300', which can't be" in found.notes


def test_a_file_of_which_no_number_is_understood_says_which() -> None:
    with pytest.raises(ImportProblem, match=r"no run in it: .*tokens_per_sec is '8 369', expected"):
        read_separated(b"strategy,gpus,tokens/s\nddp,2,8 369\n", shipped())


def test_a_file_with_zero_bytes_and_no_mark_is_no_latin_1() -> None:
    with pytest.raises(ImportProblem, match="not a CSV file in UTF-8 or UTF-16"):
        read_separated("strategy,tokens/s\nschön,8000\n".encode("latin-1").replace(b"s", b"s\0"), shipped())


def test_a_unit_that_nobody_knows_is_named() -> None:
    found = read_separated(b"tokens/s,step time\n8000,5 parsecs\n", shipped())
    assert found.runs == ({"tokens_per_sec": 8000.0},)
    assert "mean_step_time_sec is '5 parsecs', expected a number" in found.notes


def test_of_several_sheets_a_single_run_with_numbers_is_about_no_other() -> None:
    sheets = {
        "One": [("Strategy", "Tokens/s", "GPUs"), ("ddp", 8000, 8)],
        "Two": [("Strategy", "Tokens/s"), ("fsdp", 7000), ("zero1", 6000)],
    }
    found = read_spreadsheet(workbook(sheets), shipped())
    assert [run.get("world_size") for run in found.runs] == [8, None, None]


def test_the_apostrophe_of_our_own_tables_is_taken_off() -> None:
    (run,) = read_separated(b"model,tokens/s\n'=1+1,8000\n", shipped()).runs
    assert run["model"] == "=1+1"


def test_rows_below_an_empty_one_are_read_and_what_ends_the_table_is_named() -> None:
    text = b"strategy,tokens/s\nddp,8000\n\nfsdp,7000\n\nmade by hand,\nzero1,6000\n"
    found = read_separated(text, shipped())
    assert [run["strategy"] for run in found.runs] == ["ddp", "fsdp"]
    assert found.notes == (
        "row 6 stands below an empty row and has no measurement: the table ends there",
        "left out below row 6: 1 more row",
    )


def test_a_formula_without_a_stored_result_is_named() -> None:
    found = read_spreadsheet(grid(("strategy", "tokens/s"), ("ddp", 8000), ("fsdp", "=B2*2")), shipped())
    assert found.runs == ({"strategy": "ddp", "tokens_per_sec": 8000.0},)
    assert found.notes == (
        "Sheet: left out, without a measurement: row 3",
        "Sheet: formulas without a stored result are left out: B3; "
        "a spreadsheet program stores them when it saves the file",
    )


def test_settings_of_our_own_table_are_read_and_a_loss_of_that_name_is_none() -> None:
    lines = (
        "strategy,world_size,tokens_per_sec,activation_checkpointing,cross_entropy,compile,offload,shard_within",
        "fsdp,8,100,full,chunked,block,optimizer,4",
        "fsdp,8,200,none,whole,none,none,",
        "fsdp,8,300,sometimes,2.31,<b>,1.5 GB,null",
    )
    found = read_separated("\n".join(lines).encode(), shipped()).runs
    names = ("activation_checkpointing", "cross_entropy", "compile", "offload", "shard_within")
    assert [tuple(run.get(name) for name in names) for run in found] == [
        ("full", "chunked", "block", "optimizer", 4),
        (None, "whole", None, None, None),
        (None, None, None, None, None),
    ]  # fmt: skip


def test_event_files_are_read_in_both_forms_of_a_scalar() -> None:
    tensors = b"".join(
        tensor("peak_memory", step, dtype=1, tensor_content=struct.pack("<f", 64.0))
        + tensor("throughput", step, dtype=2, double_val=[8000.0])
        + tensor("a_vector", step, dtype=1, float_val=[1.0, 2.0])
        for step in range(20)
    )
    found = events(nemo(range(20)) + tensors + scalar("lr", 0, 3e-4))
    (run,) = found.runs
    assert (run["mean_step_time_sec"], run["peak_vram_gb"]) == (0.5, 64.0)
    assert run["tokens_per_sec"] == pytest.approx(8000.0)
    assert found.not_mapped == ("lr",)


def test_steps_that_a_restart_repeated_count_once_as_the_later_file_has_them() -> None:
    (run,) = events(nemo(range(20), seconds=1.0), nemo(range(10, 30), seconds=3.0)).runs
    assert run["steps"] == 27
    assert run["window_sec"] == pytest.approx(7 * 1.0 + 20 * 3.0)


def test_a_scalar_that_its_column_can_not_hold_is_left_out_and_named() -> None:
    odd = scalar("world_size", 0, 2.5) + scalar("model", 0, 1.0) + scalar("step_time", 0, -1.0)
    found = events(nemo(range(20)) + odd)
    assert "world_size" not in found.runs[0]
    assert found.runs[0]["mean_step_time_sec"] == 0.5
    assert found.not_mapped == ("model",)
    assert any("world_size: world_size is 2.5" in note for note in found.notes)


def test_an_event_file_whose_writer_was_killed_counts_up_to_there() -> None:
    found = events((nemo(range(20)) + scalar("reduced_train_loss", 20, 1.0))[:-5])
    assert found.runs[0]["steps"] == 18
    assert any("its writer was killed" in note for note in found.notes)


@pytest.mark.parametrize("at", [9, 14])
def test_a_wrong_checksum_refuses_an_event_file(at: int) -> None:
    data = bytearray(nemo(range(20)))
    data[at] ^= 1
    with pytest.raises(ImportProblem, match=r"checksum .* is wrong"):
        events(bytes(data))


def test_event_files_of_another_writer_are_read_from_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "nvi-logs" / "llama3_1_8b_pretrain_fp8"
    with SummaryWriter(str(folder)) as writer:
        for step in range(30):
            writer.add_scalar("train_step_timing in s", 30.0 if step == 0 else 1.5, step)
            writer.add_scalar("reduced_train_loss", 8.0, step)
    (row,) = imported(tmp_path / "nvi-logs", vendor="nvidia").rows
    assert (row.model, row.precision, row.group) == ("llama-3.1-8b", "fp8", "imported-nvidia")
    assert (row.mean_step_time_sec, row.steps, row.warmup_steps) == (1.5, 27, 3)
    assert row.source == "nvi-logs/llama3_1_8b_pretrain_fp8/events"


def test_logs_of_two_folders_of_one_name_are_two_runs(tmp_path: Path) -> None:
    folders = [tmp_path / side / "logs" for side in ("left", "right")]
    for seconds, folder in zip((0.5, 0.75), folders, strict=True):
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1.host").write_bytes(nemo(range(20), seconds))
    assert [row.mean_step_time_sec for row in imported(*folders).rows] == [0.5, 0.75]


@given(at=st.integers(0, 2_000), flipped=st.integers(1, 255), length=st.integers(0, 2_000))
def test_a_damaged_event_file_never_gives_other_numbers(at: int, flipped: int, length: int) -> None:
    whole = nemo(range(20))
    data = bytearray(whole[: len(whole) - length % len(whole)])
    data[at % len(data)] ^= flipped
    try:
        (run,) = events(bytes(data)).runs
    except ImportProblem:
        return
    assert {run.get("mean_step_time_sec", 0.5)} == {0.5}


def test_the_events_that_we_write_ourselves_are_mapped_too() -> None:
    tags = ("train/loss", "train/tokens_per_s", "device/memory_bytes")
    found = events(b"".join(scalar(tag, step, 4e9) for tag in (*tags, "train/val_loss") for step in range(5)))
    assert found.runs[0]["tokens_per_sec"] == pytest.approx(4e9)
    assert (found.runs[0]["mean_loss"], found.runs[0]["device_used_bytes_max"]) == (4e9, 4_000_000_000)
    assert found.not_mapped == ("train/val_loss",)


def test_a_header_of_a_stranger_is_repeated_in_part_alone() -> None:
    with pytest.raises(ImportProblem) as error:
        read_separated(b"x" * 50_000 + b"\n1\n", shipped())
    assert "x" * 77 + "..." in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_workbook_that_is_packed_as_none_ever_is_is_refused_unread(method: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", "<worksheet/>")
    # What it says of itself is no data of that method.
    whole = packed.getvalue()
    for data in (whole, whole.replace(b"BZh9", b"nope"), whole[:60] + b"?" * 8 + whole[68:]):
        with pytest.raises(ImportProblem, match=r"packed by method 1[24], which workbooks do not know"):
            read_spreadsheet(data, shipped())
