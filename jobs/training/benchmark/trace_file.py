"""Writes what a profiler recorded as a Chrome trace, for Perfetto and ``chrome://tracing``. Pure.

The file has names of operations, their times, and which thread or stream they ran on, and nothing else.
torch's own export would add the machine's name, paths, process ids and the sizes of the process groups.
"""

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from jobs.training.benchmark.spans import Span

MOST_BYTES = 16 * 2**20
_MOST_NAME = 300
_AT_ONCE = 2_000
_HOST, _DEVICE = 0, 1
_ON_DEVICE = ("kernel", "copy")


def chrome_trace(spans: Sequence[Span], *, rank: int, most_bytes: int = MOST_BYTES) -> bytes | None:
    """The trace in gzip; None if it would be larger than ``most_bytes``. Equal spans give equal bytes."""
    sink = io.BytesIO()
    with gzip.GzipFile(fileobj=sink, mode="wb", filename="", mtime=0, compresslevel=6) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        events, separator = map(_line, _events(spans, rank)), b""
        while lines := list(islice(events, _AT_ONCE)):
            file.write(separator + b",\n".join(lines))
            separator = b",\n"
            if sink.tell() > most_bytes:
                return None
        file.write(b"\n]}\n")
    return sink.getvalue() if sink.tell() <= most_bytes else None


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _events(spans: Sequence[Span], rank: int) -> Iterator[dict[str, Any]]:
    origin = min((span.start_ns for span in spans), default=0)
    yield _name("process", _HOST, 0, f"rank {rank}: host")
    if any(span.kind in _ON_DEVICE for span in spans):
        yield _name("process", _DEVICE, 0, f"rank {rank}: device")
    for place, lane in sorted({(_place(span), span.lane) for span in spans}):
        yield _name("thread", place, lane, f"{'stream' if place == _DEVICE else 'thread'} {lane}")
    for span in spans:
        yield {
            **_at(span, origin),
            "ph": "X",
            "cat": span.kind,
            "name": span.name[:_MOST_NAME],
            "dur": (span.end_ns - span.start_ns) / 1e3,
        }
    yield from _arrows(spans, origin)


def _arrows(spans: Iterable[Span], origin: int) -> Iterator[dict[str, Any]]:
    """From each launch to what it launched."""
    known = [span for span in spans if span.correlation]
    launches = {span.correlation: span for span in known if span.kind == "launch"}
    for span in known:
        if span.kind in _ON_DEVICE and (launch := launches.get(span.correlation)):
            arrow = {"cat": "launch", "name": "launch", "id": span.correlation}
            yield {**_at(launch, origin), **arrow, "ph": "s"}
            yield {**_at(span, origin), **arrow, "ph": "f", "bp": "e"}


def _at(span: Span, origin: int) -> dict[str, Any]:
    return {"pid": _place(span), "tid": span.lane, "ts": (span.start_ns - origin) / 1e3}


def _place(span: Span) -> int:
    return _DEVICE if span.kind in _ON_DEVICE else _HOST


def _name(what: str, place: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": place, "tid": lane, "args": {"name": name}}
