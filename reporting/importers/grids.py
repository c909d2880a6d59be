"""This module finds runs in a sheet of cells, wherever in its first rows the headers are. Pure.

Headers are in a row, or in a column if more names are known there. Empty rows within a table are passed over;
below an empty row, a row without a measurement ends the table, and what is left out is named. Pairs above the
table ("Model", "Llama") apply to all its runs. A table with step numbers is one run per configuration.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from reporting.importers.contents import (
    MEASURED,
    ImportProblem,
    SourceContents,
    Values,
    is_measured,
    left_out,
    listed,
)
from reporting.importers.mapping import STEP, MappedColumn, NameMapping
from reporting.importers.quantities import Unreadable, value_for
from reporting.importers.series import run_of_points
from reporting.results.settings import NAMES

Cells = Sequence[Any]
Grid = Sequence[Cells]

_NOTHING_TAKEN = "nothing is taken from it: no run in it"
_FIRST_ROWS = 30
_FEWEST_KNOWN = 2
_MOST_LABELS = 500
_CONFIG = (
    "model", "strategy", "world_size", "seq_len", "tier", "per_device_batch", "grad_accum", "precision",
    "vendor", "platform", "device_name", "seed", *NAMES,
)  # fmt: skip
_SUMMARIES = {"average", "avg", "mean", "total", "sum", "min", "max", "std", "stdev", "median"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The headers of a table. ``row`` is the last row of the header; ``targets`` is by index in the sheet,
    with each column at most once. ``noun`` is what a run stands in.
    """

    row: int
    targets: Mapping[int, MappedColumn]
    unknown: tuple[str, ...]
    noun: str = "row"


def read_grids(grids: Sequence[tuple[str, Grid]], mapping: NameMapping) -> SourceContents:
    """Reads all sheets. A sheet with a single run and no measurements applies to the runs of all other
    sheets. Raises ``ImportProblem`` if none has a measured run.
    """
    sheets = [_read(name, grid, mapping) for name, grid in grids]
    measured = [run for sheet in sheets for run in sheet.runs if is_measured(run)]
    shared: dict[str, Any] = {}
    for sheet in sheets:
        if len(sheet.runs) == 1 and not is_measured(sheet.runs[0]):
            shared |= sheet.runs[0]
    not_mapped = tuple(dict.fromkeys(name for sheet in sheets for name in sheet.not_mapped))
    if not measured:
        problems = [note for sheet in sheets for note in sheet.notes if note != _NOTHING_TAKEN]
        seen = f"found {listed(not_mapped or problems)}" if not_mapped or problems else "found no header"
        raise ImportProblem(
            f"no run in it: expected headers that the mapping knows, {seen}; add names with --mapping"
        )
    return SourceContents(
        kind="table",
        runs=tuple({**shared, **run} for run in measured),
        not_mapped=not_mapped,
        notes=tuple(note for sheet in sheets for note in sheet.notes),
    )


def _read(name: str, grid: Grid, mapping: NameMapping) -> SourceContents:
    header, grid = _best_header(grid, mapping)
    notes: list[str] = []
    runs: list[Values] = []
    if len(header.targets) >= _FEWEST_KNOWN:
        above = _labelled_values(grid[: header.row], mapping, notes)
        runs = [{**above, **run} for run in _runs(grid[header.row + 1 :], header, mapping, notes)]
    if not runs and any(cell not in (None, "") for row in grid for cell in row):
        notes.append(_NOTHING_TAKEN)
    return SourceContents(
        kind="table",
        runs=tuple(runs),
        not_mapped=_in_sheet(name, header.unknown),
        notes=_in_sheet(name, notes),
    )


def _best_header(grid: Grid, mapping: NameMapping) -> tuple[_Header, Grid]:
    """Returns the header, in a row or a column, with the most names that the mapping knows. If both have as
    many, the row counts.
    """
    upright, transposed = _header(grid, mapping), _header(_transposed(grid[:_MOST_LABELS]), mapping)
    if len(transposed.targets) > len(upright.targets):
        return replace(transposed, noun="column"), _transposed(grid)
    return upright, grid


def _header(grid: Grid, mapping: NameMapping) -> _Header:
    found = [_header_at(grid, row, mapping) for row in range(min(len(grid), _FIRST_ROWS))]
    return max(found, key=lambda header: len(header.targets), default=_Header(row=0, targets={}, unknown=()))


def _header_at(grid: Grid, row: int, mapping: NameMapping) -> _Header:
    targets: dict[int, MappedColumn] = {}
    unknown: list[str] = []
    for index, label in enumerate(grid[row][:_MOST_LABELS]):
        if not isinstance(label, str) or not label.strip():
            continue
        target = mapping.target(*_labels(grid, row, index))
        if target and target.column not in {known.column for known in targets.values()}:
            targets[index] = target
        else:
            unknown.append(label.strip())
    return _Header(row=row, targets=targets, unknown=tuple(unknown))


def _labels(grid: Grid, row: int, index: int) -> tuple[str, ...]:
    """Returns the cell's label, after the label of the cell above it, as merged headers need."""
    above = grid[row - 1][index] if row and index < len(grid[row - 1]) else None
    return (above, grid[row][index]) if isinstance(above, str) else (grid[row][index],)


def _runs(rows: Grid, header: _Header, mapping: NameMapping, notes: list[str]) -> list[dict[str, Any]]:
    lines = [(line, _run(row, header, mapping, notes)) for line, row in _of_table(rows, header, notes)]
    if STEP not in {target.column for target in header.targets.values()}:
        return _measured(lines, header, notes)
    notes += left_out([line for line, run in lines if STEP not in run], header.noun, "without a step")
    found = []
    for config, points in _by_config([run for _, run in lines if STEP in run]).items():
        run, new_notes = run_of_points(_series(points))
        notes.extend(new_notes)
        found += [{**run, **dict(config)}] if run else []
    return found


def _measured(
    lines: Sequence[tuple[int, dict[str, Any]]], header: _Header, notes: list[str]
) -> list[dict[str, Any]]:
    """Returns the runs with a measurement. A single one without is what a sheet says of all other sheets."""
    if len(lines) == 1:
        return [run for _, run in lines if run]
    empty = [line for line, run in lines if not is_measured(run)]
    notes += left_out(empty, header.noun, "without a measurement")
    return [run for _, run in lines if is_measured(run)]


def _by_config(steps: Sequence[dict[str, Any]]) -> dict[tuple[tuple[str, Any], ...], list[dict[str, Any]]]:
    """Splits a long table into its runs, which differ in their configuration."""
    found: dict[tuple[tuple[str, Any], ...], list[dict[str, Any]]] = {}
    for step in steps:
        config = tuple((name, step[name]) for name in _CONFIG if name in step)
        found.setdefault(config, []).append(step)
    return found


def _series(steps: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, Any]]]:
    series: dict[str, list[tuple[int, Any]]] = {}
    for step in steps:
        for column, value in step.items():
            if column not in (STEP, *_CONFIG) and STEP in step:
                series.setdefault(column, []).append((step[STEP], value))
    return series


def _of_table(rows: Grid, header: _Header, notes: list[str]) -> Iterator[tuple[int, Cells]]:
    """Yields the table's rows with their numbers, counted from 1 at the sheet's top. Summaries are named."""
    is_below_empty = False
    summaries: list[int] = []
    for index, row in enumerate(rows):
        line = header.row + index + 2
        filled = [cell for cell in row if cell not in (None, "")]
        if not filled:
            is_below_empty = True
            continue
        if is_below_empty and not _has_measurement(row, header):
            num_left = sum(any(cell not in (None, "") for cell in rest) for rest in rows[index:])
            noun = header.noun
            notes.append(
                f"{noun} {line} stands below an empty {noun} and has no measurement: the table ends there"
            )
            if num_left > 1:
                more = f"1 more {noun}" if num_left == 2 else f"{num_left - 1} more {noun}s"
                notes.append(f"left out below {noun} {line}: {more}")
            break
        if str(filled[0]).strip().rstrip(":").lower() in _SUMMARIES:
            summaries.append(line)
        else:
            yield line, row
    notes += left_out(summaries, header.noun, "since it sums up others")


def _has_measurement(row: Cells, header: _Header) -> bool:
    for index, target in header.targets.items():
        if target.column in (*MEASURED, STEP) and index < len(row):
            try:
                if value_for("steps" if target.column == STEP else target.column, row[index]) is not None:
                    return True
            except Unreadable:
                continue
    return False


def _run(row: Cells, header: _Header, mapping: NameMapping, notes: list[str]) -> dict[str, Any]:
    found = {}
    for index, target in header.targets.items():
        if index < len(row):
            value = _value(row[index], target, mapping, notes)
            if value is not None:
                found[target.column] = value
    return found


def _value(cell: Any, target: MappedColumn, mapping: NameMapping, notes: list[str]) -> Any:
    try:
        if target.column == STEP:
            return value_for("steps", cell)
        return mapping.value(target.column, value_for(target.column, cell, target.factor))
    except Unreadable as error:
        notes.append(str(error))
        return None


def _labelled_values(rows: Grid, mapping: NameMapping, notes: list[str]) -> dict[str, Any]:
    """Returns the values that stand beside a known name. Merged cells repeat their text, so repeated cells
    are dropped first.
    """
    found: dict[str, Any] = {}
    for row in rows:
        cells = [cell for index, cell in enumerate(row) if cell not in (None, "") and cell not in row[:index]]
        for label, beside in pairwise(cells):
            target = mapping.target(label.rstrip(": ")) if isinstance(label, str) else None
            if target and target.column != STEP:
                value = _value(beside, target, mapping, notes)
                found |= {target.column: value} if value is not None else {}
    return found


def _transposed(grid: Grid) -> Grid:
    width = max((len(row) for row in grid), default=0)
    return [[row[index] if index < len(row) else None for row in grid] for index in range(width)]


def _in_sheet(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}: {text}" if name else text for text in dict.fromkeys(texts))
