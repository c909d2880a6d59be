"""This type is the result of an inspection for one thing that it looked at. Pure."""

from dataclasses import dataclass

from reporting.analysis.findings import CellSummary, CheckLevel
from reporting.results.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A result. ``badness`` orders the wrong ones; ``value`` is what was looked at, if that is a number."""

    level: CheckLevel
    subject: str
    found: str = ""
    advice: str = ""
    badness: float = 0.0
    value: float | None = None


def name_of(cell: CellSummary) -> str:
    return f"{cell.group}: {cell.subject}"


def ok_rows(cell: CellSummary) -> tuple[Row, ...]:
    return tuple(row for row in cell.rows if row.status == "ok")


def is_imported(cell: CellSummary) -> bool:
    return "imported" in cell.flags


def how_to_name_the_device(cell: CellSummary) -> str:
    """Returns the advice that fits who ran the cell: another tool, or us, and on what."""
    if is_imported(cell):
        return "Map a header to device_name and import again, or measure again."
    if cell.vendor == "cpu" or "simulated" in cell.flags:
        return "A CPU has no peak to compare with: nothing is to be done."
    return "Name the device in cluster.yaml."
