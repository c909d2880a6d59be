"""This module reads scalars from TensorBoard event files, in either of the two forms that writers use.

The files are TFRecords: length, its checksum, bytes, their checksum. If a file ends in the middle of a
record, its writer was killed; the records before it count. A wrong checksum anywhere else refuses the file.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, BinaryIO

from reporting.importers.contents import ImportProblem, SourceContents, is_measured, listed
from reporting.importers.mapping import STEP, NameMapping
from reporting.importers.quantities import Unreadable, value_for
from reporting.importers.series import run_of_points
from reporting.results.rows import kind_of

# A scalar takes about 60 bytes; a larger record is a graph, a histogram or a picture.
_MOST_BYTES_OF_A_SCALAR = 1 << 16
_MOST_POINTS = 5_000_000
_TENSOR_FORMATS = {1: "f", 2: "d", 3: "i", 9: "q"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64


@dataclass(slots=True)
class _Log:
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    num_points: int = 0
    is_cut: bool = False


def read_events(files: Sequence[BinaryIO], mapping: NameMapping) -> SourceContents:
    """Reads all files of one folder as one run. If a step is in several files, the later file's
    value counts.
    """
    log = _Log()
    for file in files:
        _read(file, log)
    series: dict[str, list[tuple[int, Any]]] = {}
    unknown: list[str] = []
    unreadable: list[str] = []
    for tag in sorted(log.points):
        target = mapping.target(tag) or mapping.target(*tag.split("/"))
        if target is None or target.column in (STEP, *series) or kind_of(target.column) not in (int, float):
            unknown.append(tag)
            continue
        try:
            series[target.column] = [
                (step, value_for(target.column, value, target.factor)) for step, value in log.points[tag]
            ]
        except Unreadable as error:
            unreadable.append(f"{tag}: {error}")
    run, notes = run_of_points(series)
    if not is_measured(run):
        seen = f"found {listed(sorted(log.points))}" if log.points else "found no scalar"
        raise ImportProblem(f"no run in it: expected tags that the mapping knows, {seen}; add with --mapping")
    cut = ("ends in the middle of a record: its writer was killed",) if log.is_cut else ()
    return SourceContents(
        kind="log", runs=(run,), not_mapped=tuple(unknown), notes=(*notes, *unreadable, *cut)
    )


def _read(file: BinaryIO, log: _Log) -> None:
    from tensorboardX.proto.event_pb2 import Event

    for record in _records(file, log):
        try:
            event = Event.FromString(record)
        # Protobuf's own error class is in a package that this project does not import.
        except Exception:
            raise ImportProblem("a record is no TensorBoard event") from None
        for value in event.summary.value:
            number = _scalar(value)
            if number is not None and isfinite(number):
                log.points.setdefault(value.tag, []).append((event.step, number))
                log.num_points += 1
        if log.num_points > _MOST_POINTS:
            raise ImportProblem(f"more than {_MOST_POINTS:,} scalars")


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or any(size.size != 1 for size in value.tensor.tensor_shape.dim):
        return None
    return _of_tensor(value.tensor)


def _of_tensor(tensor: Any) -> float | None:
    """Returns the tensor's number, which is in a list for its type or in bytes."""
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    form = _TENSOR_FORMATS.get(tensor.dtype)
    if form and len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(f"<{form}", tensor.tensor_content)[0])
    return None


def _records(file: BinaryIO, log: _Log) -> Iterator[bytes]:
    from tensorboardX.record_writer import masked_crc32c

    start = 0
    while head := file.read(12):
        if len(head) < 12:
            log.is_cut = True
            return
        length, checksum = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != checksum:
            raise ImportProblem(f"the checksum at byte {start} is wrong: damaged, or no event file")
        if length > _MOST_BYTES_OF_A_SCALAR:
            file.seek(length + 4, 1)
        else:
            body = file.read(length + 4)
            if len(body) < length + 4:
                log.is_cut = True
                return
            if masked_crc32c(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                raise ImportProblem(f"the checksum of the record at byte {start} is wrong: damaged")
            yield body[:-4]
        start += 16 + length
