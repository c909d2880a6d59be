"""This module reads all files that a user names into rows: one import.

A file that can't be read is reported with its reason; the other files are still imported.
"""

import hashlib
import json
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reporting.importers.contents import ImportProblem, SourceContents, Values
from reporting.importers.documents import read_document
from reporting.importers.events import read_events
from reporting.importers.mapping import NameMapping
from reporting.importers.quantities import Unreadable, value_for, whole
from reporting.importers.separated import read_separated
from reporting.importers.sources import ImportSource, UnreadSource, find_sources, is_log
from reporting.importers.spreadsheets import read_spreadsheet
from reporting.importers.trust import trusted, with_scaling_efficiency
from reporting.results.records import RecordError
from reporting.results.rows import Row, row_from
from reporting.results.settings import settings_text

_MOST_BYTES = 64 << 20
_MOST_LOG_BYTES = 4 << 30
_VENDORS = ("nvidia", "amd", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSource:
    """A source that contained runs. ``num_repeated`` of its runs had already been found in an
    earlier source.
    """

    label: str
    num_runs: int
    num_repeated: int
    not_mapped: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """The result of an import. ``rows`` are in the order of their sources; each run is there once."""

    rows: tuple[Row, ...]
    read: tuple[ReadSource, ...]
    unread: tuple[UnreadSource, ...]


def read_all(
    paths: Sequence[Path],
    mapping: NameMapping,
    *,
    name: str,
    group: str | None,
    vendor: str | None,
    known: Mapping[str, Row] | None = None,
) -> Import:
    """Reads all sources. ``name`` is the sweep's. Without ``group``, the group is ``imported``, or
    ``imported-`` and the vendor if the vendor is known. ``known`` has the runs of earlier imports, by id.
    """
    sources, problems = find_sources(paths)
    rows: dict[str, Row] = {}
    read: list[ReadSource] = []
    for source in sources:
        try:
            found = _read(source, mapping)
            new = [_row(values, found.kind, source.label, mapping, group, vendor) for values in found.runs]
        except (ImportProblem, RecordError, OSError) as error:
            problems.append(UnreadSource(label=source.label, reason=_reason(error)))
            continue
        fresh: dict[str, Row] = {}
        for row in new:
            fresh[_run_id(row, ChainMap(fresh, rows, dict(known or {})))] = row
        num_repeated = len(new) - len(fresh.keys() - rows.keys())
        rows |= {key: row for key, row in fresh.items() if key not in rows}
        read.append(
            ReadSource(
                label=source.label,
                num_runs=len(new),
                num_repeated=num_repeated,
                not_mapped=found.not_mapped,
                notes=found.notes,
            )
        )
    return Import(rows=_numbered(rows, name), read=tuple(read), unread=tuple(problems))


def _read(source: ImportSource, mapping: NameMapping) -> SourceContents:
    path = source.paths[0]
    if is_log(path):
        _check_size(source.paths, _MOST_LOG_BYTES)
        with ExitStack() as opened:
            return read_events([opened.enter_context(path.open("rb")) for path in source.paths], mapping)
    reader = {".json": read_document, ".csv": read_separated, ".xlsx": read_spreadsheet}.get(
        path.suffix.lower()
    )
    if reader is None:
        raise ImportProblem("not a kind that is read: expected .json, .csv, .xlsx or TensorBoard events")
    _check_size(source.paths, _MOST_BYTES)
    return reader(path.read_bytes(), mapping)


def _check_size(paths: Sequence[Path], most_bytes: int) -> None:
    size = sum(path.stat().st_size for path in paths)
    if size > most_bytes:
        raise ImportProblem(f"{size / 1e6:,.0f} MB, expected at most {most_bytes / 1e6:,.0f} MB")


def _row(
    values: Values, kind: str, label: str, mapping: NameMapping, group: str | None, vendor: str | None
) -> Row:
    found = trusted({**_values_in_path(label, mapping), **values}, kind)
    vendor = vendor or _vendor(found, mapping)
    found |= {"vendor": vendor, "group": group or (f"imported-{vendor}" if vendor else "imported")}
    return row_from({**found, "imported": True, "source": whole(label)})


def _values_in_path(label: str, mapping: NameMapping) -> dict[str, Any]:
    texts = mapping.values_in_path(label)
    try:
        return {column: mapping.value(column, value_for(column, text)) for column, text in texts.items()}
    except Unreadable as error:
        raise ImportProblem(f"its path: {error}") from None


def _vendor(found: dict[str, Any], mapping: NameMapping) -> str | None:
    vendor = found.pop("vendor", None)
    texts = (vendor, found.get("platform"), found.get("device_name"))
    return vendor if vendor in _VENDORS else next(filter(None, map(mapping.vendor, texts)), None)


def _run_id(row: Row, taken: Mapping[str, Row]) -> str:
    """Identifies a run by its measurements and where it ran, so that a table that repeats a result adds no
    run. If another configuration's run has the same rounded measurements, its configuration counts as well.
    """
    run_id = _digest(row.group, row.strategy, row.world_size, row.seq_len, row.tokens_per_sec,
                     row.mean_step_time_sec, row.mean_loss, row.peak_vram_gb)  # fmt: skip
    other = taken.get(run_id)
    if other is None or _may_be_same(_configuration(row), _configuration(other)):
        return run_id
    return _digest(run_id, *_configuration(row))


def _configuration(row: Row) -> tuple[object, ...]:
    settings = settings_text(row) or None
    return (row.model, row.precision, row.per_device_batch, row.grad_accum, settings)


def _may_be_same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two configurations differ in nothing that both say."""
    pairs = zip(one, other, strict=True)
    return all(mine is None or its is None or mine == its for mine, its in pairs)


def _numbered(rows: Mapping[str, Row], sweep: str) -> tuple[Row, ...]:
    repeats: dict[str, int] = {}
    found = []
    for run_id, row in rows.items():
        # A row that says nothing of them keeps the identity that it had before there were such columns.
        settings = [part for part in (settings_text(row), row.micro_batch_asked, row.rung) if part]
        cell_id = _digest(sweep, row.group, row.model, row.strategy, row.world_size, row.seq_len,
                          row.per_device_batch, row.grad_accum, row.precision, *settings)  # fmt: skip
        repeats[cell_id] = repeats.get(cell_id, -1) + 1
        found.append(replace(row, sweep=sweep, run_id=run_id, cell_id=cell_id, repeat=repeats[cell_id]))
    return with_scaling_efficiency(found)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
