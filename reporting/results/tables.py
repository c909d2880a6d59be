"""Tables are rows as files: ``metrics.parquet`` and ``metrics.csv``. The same rows give the same bytes.

Parquet keeps lists as lists. Pairs of names and values (packages, variables, optimizer, the user's own
metrics) are JSON in one column of both files. Otherwise each table would have different columns. The CSV has
lists as JSON too, and no ``raw_step_times``.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reporting.results.rows import NAMES, Row, kind_of

SCHEMA_VERSION = 1
_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_LISTS = {"error_log_tail": pa.string(), "warnings": pa.string(), "nodes": pa.string()}
_LONG = "raw_step_times"
_ROWS_PER_CHUNK = 10_000


def metrics_parquet(rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    schema = _schema()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(rows), _ROWS_PER_CHUNK):
            chunk = rows[start : start + _ROWS_PER_CHUNK]
            columns = {name: [_in_parquet(name, row) for row in chunk] for name in NAMES}
            writer.write_table(pa.table(columns, schema=schema))
    return sink.getvalue()


def metrics_csv(rows: Sequence[Row]) -> bytes:
    """Writes floats so that they read back as the same number; null is an empty field."""
    names = [name for name in NAMES if name != _LONG]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_in_csv(getattr(row, name)) for name in names] for row in rows)
    return text.getvalue().encode()


def _schema() -> pa.Schema:
    kinds = dict(_kinds())
    return pa.schema(
        [(name, kinds[name]) for name in NAMES], metadata={"longhaul.metrics": str(SCHEMA_VERSION)}
    )


def _kinds() -> Iterator[tuple[str, pa.DataType]]:
    for field in fields(Row):
        if field.name in _LISTS:
            yield field.name, pa.list_(_LISTS[field.name])
        elif field.name == _LONG:
            yield field.name, pa.list_(pa.float64())
        else:
            yield field.name, _PLAIN.get(kind_of(field.name), pa.string())


def _in_parquet(name: str, row: Row) -> Any:
    value = getattr(row, name)
    if isinstance(value, tuple) and name != _LONG and name not in _LISTS:
        return _pairs(value)
    return value


def _in_csv(value: Any) -> Any:
    if isinstance(value, tuple):
        is_pairs = bool(value) and isinstance(value[0], tuple)
        return (_pairs(value) if is_pairs else json.dumps(value)) if value else ""
    return str(value).lower() if isinstance(value, bool) else value


def _pairs(pairs: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps(dict(pairs))
