"""Profiles say where the time of a cell's steps went: medians over the cell's profiled runs. Pure.

Names of operations and files come from results that others may have written, so what shows them escapes and
shortens them, as it does with every name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from reporting.analysis.findings import CellSummary
from reporting.analysis.formatting import is_known
from reporting.results.rows import Row

MOST_OPERATIONS = 10
_TRACE = re.compile(r"trace-[0-9a-f]{16}\.json\.gz")
_RESULT = "/result.json"

ABOUT = (
    "The profiled steps come after the measured window, and the profiler slows them down: “of measured” says "
    "by how much. All shares are of their time. Communication is the time in which a collective runs or "
    "waits for another rank. It is exposed while nothing is computed on that rank: no other kernel on a "
    "device, no operator on a CPU (where gloo's own threads carry collectives out). Shares are means over "
    "ranks. Operations and the trace are rank 0's, of the first profiled run; their shares may add up to "
    "more than 100 %, since some run at the same time."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperation:
    """One operation. ``share`` is of the profiled time, calls and seconds are per step."""

    name: str
    share: float
    calls: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellProfile:
    """A cell's profile. ``slowdown`` is a profiled step's time over a measured one's. ``trace`` is a name in
    the store. ``problem`` is why a profile or its trace is missing.
    """

    cell: CellSummary
    basis: str | None
    step_sec: float | None
    slowdown: float | None
    communication: float | None
    exposed: float | None
    exposed_least: float | None
    exposed_most: float | None
    data_wait: float | None
    idle: float | None
    operations: tuple[ProfiledOperation, ...]
    trace: str | None
    problem: str | None


def profiles_of(cells: Iterable[CellSummary]) -> tuple[CellProfile, ...]:
    """Returns the profiles of all cells for which one was asked, in the order of the cells."""
    return tuple(_profile(cell) for cell in cells if any(map(_was_asked_for, cell.rows)))


def _was_asked_for(row: Row) -> bool:
    return row.profile_steps is not None or row.profile_problem is not None


def _profile(cell: CellSummary) -> CellProfile:
    rows = [row for row in cell.rows if row.profile_steps is not None]
    first = rows[0] if rows else None
    return CellProfile(
        cell=cell,
        basis=first.profile_basis if first else None,
        step_sec=_median(row.profile_step_sec for row in rows),
        slowdown=_median(map(_slowdown, rows)),
        communication=_median(row.profile_communication_share for row in rows),
        exposed=_median(row.profile_exposed_communication_share for row in rows),
        exposed_least=_median(row.profile_exposed_communication_share_min for row in rows),
        exposed_most=_median(row.profile_exposed_communication_share_max for row in rows),
        data_wait=_median(row.profile_data_wait_share for row in rows),
        idle=_median(row.profile_device_idle_share for row in rows),
        operations=_operations(first) if first else (),
        trace=_trace(first) if first else None,
        problem=_problem(cell.rows),
    )


def _operations(row: Row) -> tuple[ProfiledOperation, ...]:
    columns = (
        row.profile_operation_names,
        row.profile_operation_shares,
        row.profile_operation_calls,
        row.profile_operation_sec,
    )
    # The lists are of one length, unless somebody else wrote them.
    found = zip(*(column[:MOST_OPERATIONS] for column in columns), strict=False)
    return tuple(
        ProfiledOperation(name=name, share=share, calls=calls, seconds=seconds)
        for name, share, calls, seconds in found
    )


def _trace(row: Row) -> str | None:
    if not row.profile_trace or not _TRACE.fullmatch(row.profile_trace) or not row.source.endswith(_RESULT):
        return None
    return f"{row.source.removesuffix(_RESULT)}/{row.profile_trace}"


def _problem(rows: Sequence[Row]) -> str | None:
    if missing := next((row.profile_problem for row in rows if row.profile_problem), None):
        return f"no profile: {missing}"
    if missing := next((row.profile_trace_problem for row in rows if row.profile_trace_problem), None):
        return f"no trace: {missing}"
    return None


def _slowdown(row: Row) -> float | None:
    if not is_known(row.profile_step_sec) or not row.mean_step_time_sec:
        return None
    return row.profile_step_sec / row.mean_step_time_sec


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if is_known(value)]
    return median(known) if known else None
