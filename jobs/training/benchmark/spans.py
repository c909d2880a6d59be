"""Sums up what a profiler recorded of one rank: its operations, and its shares of the time. Pure.

Shares are of the profiled time, from the first profiled step until the device is done with the last one.

* On a device a collective is a kernel of NCCL or RCCL, and computing is any other kernel. Copies are neither.
* On a CPU a collective is a task of gloo, which has threads of its own. Computing is an operator or a
  compiled graph that runs on another thread, and none of what starts a collective or waits for one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from jobs.training.task.measurement import Operation, ProfileBasis, RankProfile

PROFILE, STEP, DATA_WAIT = "longhaul.profile", "longhaul.step", "longhaul.data wait"
MOST_OPERATIONS = 10

SpanKind = Literal["operator", "annotation", "kernel", "copy", "launch"]
# A name, and when it began and ended.
_Piece = tuple[str, int, int]

_LIBRARIES = ("nccl", "rccl", "msccl")
_GLOO = "gloo:"
_COMPILED = "## Call CompiledFxGraph "
# Operators that start collectives, wait for them, or call hooks that do.
_NOT_COMPUTING = ("c10d", "_c10d", "autograd::", "torch::autograd::")


@dataclass(frozen=True, slots=True)
class Span:
    """``lane`` is the thread, or the device's stream. ``correlation`` ties a kernel to its launch."""

    name: str
    kind: SpanKind
    lane: int
    start_ns: int
    end_ns: int
    correlation: int = 0


class NothingRecorded(Exception):
    """The profiler ran without an error, and recorded nothing to sum up."""


def sum_up(
    spans: Sequence[Span], basis: ProfileBasis, num_steps: int
) -> tuple[RankProfile, tuple[Operation, ...]]:
    """The rank's shares, and its operations that took most of the time. Raises ``NothingRecorded``."""
    began, ended = _window(spans)
    inside = [span for span in spans if span.start_ns < ended and span.end_ns > began]
    computing, collectives = _on_device(inside) if basis == "device" else _on_cpu(inside)
    if not computing:
        raise NothingRecorded(f"the profiler recorded no work of the {basis}")
    window_ns = ended - began

    def covered_ns(*pieces: Iterable[_Piece]) -> int:
        return _covered_ns(chain(*pieces), began, ended)

    copies = [_whole(span) for span in inside if span.kind == "copy"]
    exposed_ns = covered_ns(collectives, computing) - covered_ns(computing)
    idle_ns = window_ns - covered_ns(collectives, computing, copies)
    waits = (_whole(span) for span in inside if span.name == DATA_WAIT)
    shares = RankProfile(
        step_s=window_ns / num_steps / 1e9,
        communication=covered_ns(collectives) / window_ns,
        exposed_communication=exposed_ns / window_ns,
        data_wait=covered_ns(waits) / window_ns,
        idle=idle_ns / window_ns if basis == "device" else None,
    )
    pieces = _cut([*computing, *collectives, *copies], began, ended)
    return shares, _operations(pieces, inside, window_ns, num_steps)


def _window(spans: Iterable[Span]) -> tuple[int, int]:
    found = next((span for span in spans if span.name == PROFILE and span.kind == "annotation"), None)
    if found is None or found.end_ns <= found.start_ns:
        raise NothingRecorded("the profiler recorded no step")
    return found.start_ns, found.end_ns


def _on_device(spans: Iterable[Span]) -> tuple[list[_Piece], list[_Piece]]:
    computing: list[_Piece] = []
    collectives: list[_Piece] = []
    for span in spans:
        if span.kind == "kernel":
            is_collective = any(library in span.name.lower() for library in _LIBRARIES)
            (collectives if is_collective else computing).append(_whole(span))
    return computing, collectives


def _on_cpu(spans: Iterable[Span]) -> tuple[list[_Piece], list[_Piece]]:
    lanes: dict[int, list[Span]] = {}
    collectives = []
    for span in spans:
        if span.kind in ("operator", "annotation"):
            lanes.setdefault(span.lane, []).append(span)
        if span.kind == "annotation" and span.name.startswith(_GLOO):
            collectives.append(span)
    of_gloo = {span.lane for span in collectives}
    computing = [
        (_spoken(span.name), start, end)
        for lane, members in lanes.items()
        if lane not in of_gloo
        for span, start, end in _innermost(members)
        if _is_computing(span)
    ]
    return computing, list(map(_whole, collectives))


def _is_computing(span: Span) -> bool:
    if span.kind != "operator" or span.name.startswith(_NOT_COMPUTING):
        return False
    # Without a namespace it is a function in Python, such as one of autograd's, that calls operators.
    return "::" in span.name or span.name.startswith(_COMPILED)


def _spoken(name: str) -> str:
    if not name.startswith(_COMPILED):
        return name
    return f"compiled graph {name.removeprefix(_COMPILED)[:12]}"


def _innermost(spans: Iterable[Span]) -> Iterator[tuple[Span, int, int]]:
    """The pieces of one thread's time, each with the span that was innermost then. No two overlap."""
    around: list[Span] = []
    now = 0
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        while around and around[-1].end_ns <= span.start_ns:
            last = around.pop()
            if last.end_ns > now:
                yield last, now, last.end_ns
                now = last.end_ns
        if around and span.start_ns > now:
            yield around[-1], now, span.start_ns
        now = max(now, span.start_ns)
        around.append(span)
    for last in reversed(around):
        if last.end_ns > now:
            yield last, now, last.end_ns
            now = last.end_ns


def _whole(span: Span) -> _Piece:
    return span.name, span.start_ns, span.end_ns


def _cut(pieces: Iterable[_Piece], began: int, ended: int) -> Iterator[_Piece]:
    """The parts of the pieces that lie in the window."""
    return (
        (name, max(start, began), min(end, ended))
        for name, start, end in pieces
        if start < ended and end > began
    )


def _operations(
    pieces: Iterable[_Piece], spans: Iterable[Span], window_ns: int, num_steps: int
) -> tuple[Operation, ...]:
    taken_ns: dict[str, int] = {}
    for name, start, end in pieces:
        taken_ns[name] = taken_ns.get(name, 0) + end - start
    top = sorted(taken_ns, key=lambda name: (-taken_ns[name], name))[:MOST_OPERATIONS]
    calls = dict.fromkeys(top, 0)
    for span in spans:
        if (name := _spoken(span.name)) in calls and span.kind != "launch":
            calls[name] += 1
    return tuple(
        Operation(
            name=name,
            share=taken_ns[name] / window_ns,
            calls_per_step=calls[name] / num_steps,
            seconds_per_step=taken_ns[name] / num_steps / 1e9,
        )
        for name in top
    )


def _covered_ns(pieces: Iterable[_Piece], began: int, ended: int) -> int:
    """How much of the time from ``began`` to ``ended`` any of the pieces covers."""
    covered, until = 0, began
    for start, end in sorted((start, end) for _, start, end in pieces):
        covered += max(0, min(end, ended) - max(start, until))
        until = max(until, end)
    return covered
