"""Tables are rows as files: ``metrics.parquet`` and ``metrics.csv``. The same rows give the same bytes.

Parquet keeps lists as lists. Pairs of names and values (packages, variables, optimizer, the user's own
metrics) are JSON in one column of both files. Otherwise each table would have different columns. The CSV has
lists as JSON too, and no ``raw_step_times``.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any
from unicodedata import category

import pyarrow as pa
import pyarrow.parquet as pq

from reporting.results.columns import TABLES, Column
from reporting.results.rows import Row

SCHEMA_VERSION = 1
_COLUMNS = TABLES["metrics"]
_TYPES = {
    "text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(),
    "texts": pa.list_(pa.string()), "floats": pa.list_(pa.float64()), "pairs": pa.string(),
}  # fmt: skip
_ROWS_PER_CHUNK = 10_000
# A spreadsheet takes a text with such a beginning for a formula, and may run it.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")
# Unicode's categories of controls, invisible marks, halves of characters, and ends of lines.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def metrics_parquet(rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema(
        [(column.name, _TYPES[column.kind]) for column in _COLUMNS],
        metadata={"longhaul.metrics": str(SCHEMA_VERSION)},
    )
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for start in range(0, len(rows), _ROWS_PER_CHUNK):
            chunk = rows[start : start + _ROWS_PER_CHUNK]
            values = {column.name: [_in_parquet(row, column) for row in chunk] for column in _COLUMNS}
            writer.write_table(pa.table(values, schema=schema))
    return sink.getvalue()


def metrics_csv(rows: Sequence[Row]) -> bytes:
    """Writes floats so that they read back as the same number; null is an empty field.

    No field of text is a formula to a spreadsheet: an apostrophe stands before one that would be. None steers
    the terminal that shows it, or looks like another one.
    """
    columns = [column for column in _COLUMNS if column.kind != "floats"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([_in_csv(row, column) for column in columns] for row in rows)
    return text.getvalue().encode()


def _in_parquet(row: Row, column: Column) -> Any:
    value = getattr(row, column.name)
    return json.dumps(dict(value)) if column.kind == "pairs" else value


def _in_csv(row: Row, column: Column) -> Any:
    value = getattr(row, column.name)
    if value == ():
        return ""
    if isinstance(value, tuple):
        return json.dumps(dict(value) if column.kind == "pairs" else value)
    if isinstance(value, str):
        return _text_in_csv(value)
    return str(value).lower() if isinstance(value, bool) else value


def _text_in_csv(value: str) -> str:
    # The csv module puts no quotes around a carriage return, and readers would take it for the row's end.
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    text = "".join("\ufffd" if _steers(char) else char for char in text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _steers(char: str) -> bool:
    return not char.isprintable() and char not in "\n\t" and category(char) in _STEERING
