"""An import is stored as ``imports/<name>-<digest>.json``, format version 1, and never changed. Pure.

Columns that a run has no value for are left out.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from reporting.results.records import RecordError, parsed
from reporting.results.rows import NAMES, Row, kind_of, row_from

FOLDER = "imports"
_FORMAT, _VERSION = "longhaul import", 1
_DEFAULTS = {field.name: field.default for field in fields(Row)}
_LONGEST_NAME = 60


def file_of(rows: Sequence[Row], name: str) -> tuple[str, bytes]:
    """Returns the file's name in the store and its bytes. The same rows give the same bytes."""
    written = {"format": _FORMAT, "version": _VERSION, "rows": [_written(row) for row in rows]}
    data = json.dumps(written, indent=1, allow_nan=False, sort_keys=True).encode() + b"\n"
    return f"{FOLDER}/{readable(name)}-{hashlib.sha256(data).hexdigest()[:12]}.json", data


def readable(name: str) -> str:
    """Returns ``name`` reduced to characters that a store accepts, or ``results`` if none remain."""
    return re.sub(r"[^A-Za-z0-9._+=@-]+", "-", name).strip("-.")[:_LONGEST_NAME] or "results"


def read_imported(data: bytes, name: str) -> tuple[Row, ...]:
    """Reads the rows of an import. Each row's ``source`` is ``name``, then ``#`` and the file that was
    imported. Raises ``RecordError``.
    """
    found = parsed(data)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise RecordError(f"not an import: expected format {_FORMAT!r}")
    if found.get("version") != _VERSION:
        raise RecordError(f"version {found.get('version')!r} of an import, expected {_VERSION}")
    rows = found.get("rows")
    if not isinstance(rows, list):
        raise RecordError("an import without rows")
    return tuple(_row(row, name) for row in rows)


def _written(row: Row) -> dict[str, Any]:
    values = ((name, getattr(row, name)) for name in NAMES)
    return {name: value for name, value in values if value != _DEFAULTS[name]}


def _row(found: Any, name: str) -> Row:
    if not isinstance(found, dict):
        raise RecordError("an import whose row is no object")
    values = {column: _value(column, value) for column, value in found.items() if column in NAMES}
    return row_from({**values, "imported": True, "source": f"{name}#{found.get('source', '')}"})


def _value(column: str, value: Any) -> Any:
    if kind_of(column) is not tuple or not isinstance(value, list):
        return value
    kind: Any = (int, float) if column == "raw_step_times" else str
    if column not in ("raw_step_times", "warnings") or not all(isinstance(one, kind) for one in value):
        raise RecordError(f"{column} holds what no import does")
    return tuple(value)
