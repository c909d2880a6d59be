"""Older results to import: the older documents' own, and what other tools write."""

import io
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.record_writer import masked_crc32c

from reporting.importers.contents import SourceContents
from reporting.importers.events import read_events
from reporting.importers.mapping import NameMapping, shipped
from reporting.importers.reading import Import, read_all

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


def events(*parts: bytes) -> SourceContents:
    return read_events([io.BytesIO(part) for part in parts], shipped())


def imported(*paths: Path, mapping: NameMapping | None = None, **changes: Any) -> Import:
    chosen = {"name": "trial", "group": None, "vendor": None, **changes}
    return read_all(paths, mapping or shipped(), **chosen)


def nemo(steps: Sequence[int], seconds: float = 0.5) -> bytes:
    return b"".join(
        scalar("train_step_timing in s", step, seconds) + scalar("reduced_train_loss", step, 9 - step / 10)
        for step in steps
    )


def merged_bomb() -> bytes:
    """A workbook of one cell that is merged with all others."""
    whole, found = io.BytesIO(workbook({"Sheet": [("GPUs",)]})), io.BytesIO()
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(found, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            merged = b'</sheetData><mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells>'
            target.writestr(name, data.replace(b"</sheetData>", merged))
    return found.getvalue()


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


def write_results(folder: Path) -> Path:
    """A folder as the older documents draw it."""
    first = folder / "bench-master-ddp-ws2-seq2048_results" / "result.json"
    first.parent.mkdir(parents=True)
    first.write_text(RESULT)
    (folder / "bench-master-ddp-ws2-seq2048.log").write_text("step 1\n")
    (folder / "summary").mkdir()
    (folder / "summary" / "metrics.csv").write_text(METRICS)
    return folder
