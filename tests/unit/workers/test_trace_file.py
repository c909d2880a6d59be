"""The trace that a profile leaves: what Perfetto reads, bounded, and nothing that says who or where."""

import gzip
import json
from typing import Any

from jobs.training.benchmark.spans import Span
from jobs.training.benchmark.trace_file import chrome_trace

SPANS = [
    Span("aten::mm", "operator", 1, 1_000_000, 1_004_500),
    Span("cudaLaunchKernel", "launch", 1, 1_001_000, 1_002_000, 42),
    Span("gemm", "kernel", 7, 1_003_000, 1_009_000, 42),
]


def events(trace: bytes | None) -> list[dict[str, Any]]:
    assert trace is not None
    found = json.loads(gzip.decompress(trace))
    assert found.keys() == {"displayTimeUnit", "traceEvents"}
    return list(found["traceEvents"])


def test_each_span_is_an_event_in_microseconds_since_the_first() -> None:
    told = [event for event in events(chrome_trace(SPANS, rank=0)) if event["ph"] == "X"]
    assert told[0] == {
        "pid": 0, "tid": 1, "ts": 0.0, "ph": "X", "cat": "operator", "name": "aten::mm", "dur": 4.5,
    }  # fmt: skip
    assert [(event["pid"], event["tid"], event["ts"]) for event in told[1:]] == [(0, 1, 1.0), (1, 7, 3.0)]


def test_a_kernel_hangs_on_its_launch() -> None:
    start, end = [event for event in events(chrome_trace(SPANS, rank=0)) if event["ph"] in "sf"]
    assert (start["ph"], start["pid"], end["ph"], end["pid"]) == ("s", 0, "f", 1)
    assert start["id"] == end["id"] == 42


def test_threads_and_streams_have_names() -> None:
    names = [event["args"]["name"] for event in events(chrome_trace(SPANS, rank=3)) if event["ph"] == "M"]
    assert names == ["rank 3: host", "rank 3: device", "thread 1", "stream 7"]


def test_equal_spans_give_equal_bytes() -> None:
    assert chrome_trace(SPANS, rank=0) == chrome_trace(SPANS, rank=0)


def test_a_trace_above_its_bound_is_none_however_it_grows() -> None:
    many = [Span(f"aten::op{number}", "operator", 1, number, number + 1) for number in range(20_000)]
    whole = chrome_trace(many, rank=0)
    assert whole is not None
    assert len(events(whole)) == 20_000 + 2
    assert chrome_trace(many, rank=0, most_bytes=len(whole)) == whole
    for most_bytes in (0, 100, len(whole) // 2, len(whole) - 1):
        assert chrome_trace(many, rank=0, most_bytes=most_bytes) is None


def test_a_name_of_any_length_and_kind_is_a_short_json_string() -> None:
    name = 'void <"\x1b[31m\n\ud800' + "x" * 10_000
    (told,) = (event["name"] for event in events(chrome_trace([Span(name, "kernel", 7, 0, 1)], rank=0))
               if event["ph"] == "X")  # fmt: skip
    assert told == name[:300]
