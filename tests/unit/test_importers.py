"""Older results, as the older documents show them and as other tools write them: what of them is believed."""

import csv
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.record_writer import masked_crc32c

from reporting.importers.documents import read_document
from reporting.importers.events import read_events
from reporting.importers.found import Found, ImportProblem
from reporting.importers.mapping import MappingError, NameMapping, read_mapping, shipped
from reporting.importers.reading import Import, read_all
from reporting.importers.separated import read_separated
from reporting.importers.spreadsheets import read_spreadsheet
from reporting.importers.stored import file_of, read_imported
from reporting.importers.trust import judged
from reporting.records import RecordError
from reporting.rows import Row

# Word for word from the older documents: a result.json, and the two rows of their metrics.csv.
RESULT = """{
  "strategy": "ddp",
  "world_size": 2,
  "rank": 0,
  "seq_len": 2048,
  "tier": "A",
  "steps": 100,
  "per_device_batch": 1,
  "grad_accum": 4,
  "tokens_per_sec": 8369.455699192402,
  "mean_step_time_sec": 0.4893986117156026,
  "mean_loss": 6.133937082792583,
  "peak_vram_gb": 13.96808448,
  "h2d_gbps_per_gpu": 1.6738911398384803e-05
}"""
METRICS = """strategy,world_size,rank,seq_len,tier,steps,per_device_batch,grad_accum,tokens_per_sec,\
mean_step_time_sec,mean_loss,peak_vram_gb,h2d_gbps_per_gpu,scaling_efficiency_pct
ddp,2,0,2048,A,100,1,4,8369.455699192402,0.4893986117156026,6.133937082792583,13.96808448,\
1.6738911398384803e-05,50.0
ddp,4,0,2048,A,100,1,4,12220.341463838564,0.6703577002525746,5.424101734161377,13.96808448,\
1.2220341463838563e-05,36.50279630794195
"""
# Sections as the older documents name them; what is in them is ours.
BENCHMARK = {
    "platform": "rocm",
    "gpu_info": {"name": "AMD Instinct MI300X", "device_count": 8, "total_memory_gb": 192},
    "training_config": {"model": "llama3_1_8b", "sequence_length": 8192, "micro_batch_size": 1},
    "performance_metrics": {"avg_step_time_seconds": 1.25, "tokens_per_second": 52_428.8, "vibes": "good"},
    "memory_metrics": {"peak_memory_allocated_gb": 120.5},
    "raw_step_times": [1.2, 1.25, 1.3],
}
HEADERS = ("GPUs", "Strategy", "Step Time (ms)", "Throughput [tok/s]", "Peak HBM (GiB)", "MFU %", "Wattage")


def grid(*rows: Sequence[Any]) -> bytes:
    return workbook({"Sheet": rows})


def workbook(sheets: dict[str, Sequence[Sequence[Any]]], merged: Sequence[tuple[str, str]] = ()) -> bytes:
    book = Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(list(row))
    for title, area in merged:
        book[title].merge_cells(area)
    return saved(book)


def saved(book: Workbook) -> bytes:
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (head, data))
    return head + next(checksums) + data + next(checksums)


def scalar(tag: str, step: int, value: float) -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return record(Event(step=step, summary=summary).SerializeToString())


def tensor(tag: str, step: int, **filled: Any) -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, tensor=TensorProto(**filled))])
    return record(Event(step=step, summary=summary).SerializeToString())


def events(*parts: bytes) -> Found:
    return read_events([io.BytesIO(part) for part in parts], shipped())


def imported(*paths: Path, mapping: NameMapping | None = None, **changes: Any) -> Import:
    chosen = {"name": "trial", "group": None, "vendor": None, **changes}
    return read_all(paths, mapping or shipped(), **chosen)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder as the older documents draw it."""
    folder = tmp_path / "results"
    first = folder / "bench-master-ddp-ws2-seq2048_results" / "result.json"
    first.parent.mkdir(parents=True)
    first.write_text(RESULT)
    (folder / "bench-master-ddp-ws2-seq2048.log").write_text("step 1\n")
    (folder / "summary").mkdir()
    (folder / "summary" / "metrics.csv").write_text(METRICS)
    return folder


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
    found = judged(HONEST, "result")
    assert (found["timing_unit"], found["warnings"]) == ("optimizer_step", ())
    assert found["h2d_gbps_per_gpu"] == 11.5


@pytest.mark.parametrize(("off", "kept"), [(0.0, False), (1e-12, False), (1e-6, True)])
def test_only_a_rate_that_equals_the_formula_is_left_out(off: float, kept: bool) -> None:
    found = judged({**HONEST, "h2d_gbps_per_gpu": 4 * 8192 / 2 / 1e9 * (1 + off)}, "result")
    assert ("h2d_gbps_per_gpu" in found) == kept


def test_numbers_that_fit_no_formula_are_doubted() -> None:
    found = judged({**HONEST, "tokens_per_sec": 5000.0}, "result")
    assert found["timing_unit"] == "unknown"
    assert "10,000 tokens, expected 16,384" in found["warnings"][0]


def test_without_grad_accumulation_none_is_missing() -> None:
    assert judged({**HONEST, "grad_accum": 1, "tokens_per_sec": 2048.0}, "result")["warnings"] == ()


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


def nemo(steps: Sequence[int], seconds: float = 0.5) -> bytes:
    return b"".join(
        scalar("train_step_timing in s", step, seconds) + scalar("reduced_train_loss", step, 9 - step / 10)
        for step in steps
    )


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


def zip_bomb() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", bytes(40_000_000))
    return data.getvalue()


def other_zip() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return data.getvalue()


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
        ("metrics.csv", b"\xff\xfe\x00a", "not a CSV file in UTF-8"),
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


def test_a_file_that_is_too_large_is_not_opened(results: Path) -> None:
    with (results / "huge.csv").open("wb") as file:
        file.truncate(65 << 20)
    found = imported(results)
    assert [problem.reason for problem in found.unread] == ["68 MB, expected at most 67 MB"]
    assert len(found.rows) == 2


@pytest.mark.parametrize("read", [read_document, read_separated, read_spreadsheet])
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_no_bytes_make_a_reader_stumble(read: Callable[[bytes, NameMapping], Found], data: bytes) -> None:
    with pytest.raises(ImportProblem):
        read(data, shipped())


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


MORE = b"""
[columns]
tokens_per_sec = ["Elephants"]
mean_step_time_sec = [{name = "T_iter", unit = "ms"}]

[values.strategy]
"data parallel" = "ddp"

[vendors]
abacus = "cpu"

[paths]
patterns = ['run-(?P<world_size>\\d+)-devices']
"""


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


@pytest.mark.parametrize("label", ["Step Time (furlongs)", "Tokens", "", "(ms)", "Throughput GB/s"])
def test_a_name_that_is_only_like_a_known_one_is_not_mapped(label: str) -> None:
    assert shipped().target(label) is None


@pytest.mark.parametrize(
    "labels",
    [("val", "loss"), ("Validation", "metrics", "loss"), ("Max", "Throughput"), ("Std", "Step Time (ms)")],
)
def test_a_label_that_tells_which_number_is_meant_is_not_left_out(labels: tuple[str, ...]) -> None:
    assert shipped().target(labels[-1]) is not None
    assert shipped().target(*labels) is None


def test_the_events_that_we_write_ourselves_are_mapped_too() -> None:
    tags = ("train/loss", "train/tokens_per_s", "device/memory_bytes")
    found = events(b"".join(scalar(tag, step, 4e9) for tag in (*tags, "train/val_loss") for step in range(5)))
    assert found.runs[0]["tokens_per_sec"] == pytest.approx(4e9)
    assert (found.runs[0]["mean_loss"], found.runs[0]["device_used_bytes_max"]) == (4e9, 4_000_000_000)
    assert found.not_mapped == ("train/val_loss",)


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
    ],
)
def test_a_stored_import_that_is_none_says_why(data: bytes, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        read_imported(data, "imports/a.json")


def test_runs_of_one_cell_are_its_repeats(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("strategy,world_size,tokens_per_sec\nddp,2,8000\nddp,2,8100\nfsdp,2,7000\n")
    rows = imported(path).rows
    assert [row.repeat for row in rows] == [0, 1, 0]
    assert rows[0].cell_id == rows[1].cell_id != rows[2].cell_id
    assert len({row.run_id for row in rows}) == 3
