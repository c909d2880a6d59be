"""Parts are small Parquet files in which workers store their rows. This module names, writes and reads them.

A part is created once and never replaced. Its name says which flushes of which rank it holds. A merged part
supersedes the parts that hold the same flushes one by one, which are deleted some time later. The file's
metadata has the schema's version and the ``RecordedAttempt``. A part that can't be read raises ``PartError``,
which says why.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkpointing.stores.contract import Store, check_name
from reporting.recording.attempts import DRIVER, LossesBySource, RecordedAttempt
from reporting.results.columns import ADDED, PARTS, SUPERSEDED, Column

SCHEMA_VERSION = 1
_VERSION, _TABLE, _ATTEMPT = b"longhaul.part", b"longhaul.table", b"longhaul.attempt"
_NAME = re.compile(
    r"runs/(?P<run>[^/]+)/parts/(?P<table>[a-z]+)/"
    r"(?P<term>\d{5,})-(?P<rank>\d{5,}|driver)-(?P<first>\d{8,})-(?P<last>\d{8,})\.parquet"
)
_TYPES = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
Rows: TypeAlias = pa.Table
_ROWS_PER_GROUP = 100_000
# Without these a row says nothing. Times and durations are in them, and no clock tells larger ones.
_NEEDED = {
    "steps": ("step", "ended_s", "step_s", "data_wait_s"),
    "samples": ("device", "taken_s"),
    "incidents": ("kind", "happened_s"),
    "phases": ("phase", "started_s", "ended_s", "seconds"),
}
_NEVER_NEGATIVE = ("step_s", "data_wait_s", "seconds")
_MOST_S, _MOST_FLOAT, _MOST_INT = 1e12, 1e100, 2**53
# A part holds the rows of some seconds, a merged one those of some thousand flushes.
_MOST_ROWS = 10_000_000
_KINDS: Mapping[str, tuple[type, ...]] = {
    "run": (str,), "term": (int,), "leased_s": (int, float), "group": (str,), "vendor": (str,),
    "model": (str,), "strategy": (str,), "world_size": (int,), "num_steps": (int,), "tokens_per_step": (int,),
    "start_step": (int, type(None)), "parent_term": (int, type(None)), "simulated": (bool,),
    "micro_batch": (int, type(None)), "loss_digest": (str, type(None)),
    "attention_kernel": (str, type(None)),
}  # fmt: skip
# The columns that say who recorded a row. All rows of a part have the same values in them.
KEY_COLUMNS = ("run", "term", "rank")


class PartError(Exception):
    """The bytes are not a part that this version can read. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartName:
    """A part's name. Names sort in the order in which each rank's rows were recorded."""

    run: str
    table: str
    term: int
    rank: int
    first: int
    last: int

    def __str__(self) -> str:
        who = "driver" if self.rank == DRIVER else f"{self.rank:05d}"
        folder = check_name(f"runs/{self.run}/parts/{self.table}")
        return f"{folder}/{self.term:05d}-{who}-{self.first:08d}-{self.last:08d}.parquet"

    def holds(self, other: "PartName") -> bool:
        mine, others = ((name.run, name.table, name.term, name.rank) for name in (self, other))
        return mine == others and self.first <= other.first and other.last <= self.last


def part_name(name: str) -> PartName | None:
    """Parses a name in the store; returns None if it is not a part's."""
    found = _NAME.fullmatch(name)
    if found is None or found["table"] not in PARTS:
        return None
    return PartName(
        run=found["run"],
        table=found["table"],
        term=int(found["term"]),
        rank=DRIVER if found["rank"] == "driver" else int(found["rank"]),
        first=int(found["first"]),
        last=int(found["last"]),
    )


def parts_of(store: Store, run: str | None = None) -> list[PartName]:
    """Returns the parts of one run, or of all runs, in the order of recording. Superseded parts are left out,
    so that each row is in exactly one part.
    """
    folder = f"runs/{run}/parts" if run else "runs"
    return without_superseded(filter(None, map(part_name, store.list(folder))))


def without_superseded(names: Iterable[PartName]) -> list[PartName]:
    kept: list[PartName] = []
    for name in sorted(
        names, key=lambda name: (name.run, name.table, name.term, name.rank, name.first, -name.last)
    ):
        if not (kept and kept[-1].holds(name)):
            kept.append(name)
    return kept


def table_of(table: str, attempt: RecordedAttempt, rank: int, rows: Sequence[Sequence[Any]]) -> Rows:
    """Makes a table from ``rows``, which have the table's columns except ``KEY_COLUMNS``. Values that are not
    finite become null.
    """
    columns = [column for column in PARTS[table] if column.name not in KEY_COLUMNS]
    values = [_array(column, found) for column, found in zip(columns, zip(*rows, strict=True), strict=True)]
    keys = (pa.repeat(value, len(rows)) for value in (attempt.run, attempt.term, rank))
    return pa.table([*keys, *values], schema=schema_of(table))


def schema_of(table: str, *more: Column) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.kind]) for column in (*PARTS[table], *more)])


def encode_part(table: str, attempt: RecordedAttempt, rows: Rows) -> bytes:
    sink = BytesIO()
    about = {
        _VERSION: str(SCHEMA_VERSION).encode(),
        _TABLE: table.encode(),
        _ATTEMPT: json.dumps(asdict(attempt)).encode(),
    }
    pq.write_table(rows.replace_schema_metadata(about), sink, compression="zstd")
    return sink.getvalue()


def decode_part(name: PartName, data: bytes) -> Rows:
    """Reads a part's rows. Columns that this version doesn't know are dropped; columns added since the part
    was written are null, and so are numbers that are none. Raises ``PartError``.
    """
    with _opened(name, data) as (_, file):
        if file.metadata.num_rows > _MOST_ROWS:
            raise PartError(f"it has {file.metadata.num_rows:,} rows, expected at most {_MOST_ROWS:,}")
        names = [column.name for column in PARTS[name.table]]
        rows = _completed(name.table, file.read(columns=names))
        return _believed(name.table, rows.select(names).cast(schema_of(name.table)))


def part_attempt(name: PartName, data: bytes) -> RecordedAttempt:
    """Reads what the part says about its attempt, without reading its rows. Raises ``PartError``."""
    with _opened(name, data) as (attempt, _):
        return attempt


@contextmanager
def _opened(name: PartName, data: bytes) -> Iterator[tuple[RecordedAttempt, pq.ParquetFile]]:
    try:
        with pq.ParquetFile(BytesIO(data)) as file:
            yield _attempt(name, file.schema_arrow.metadata or {}), file
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        first_line = str(error).partition("\n")[0]
        raise PartError(f"not a part that can be read ({first_line})") from None


def joined(tables: Sequence[Rows]) -> Rows:
    return pa.concat_tables(tables)


def rows_in(rows: Rows) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches():
        yield from batch.to_pylist()


class StepsFile:
    """``steps.parquet``: the rows of step parts, each marked as superseded or not. Must be used as a context
    manager.
    """

    def __init__(self, path: Path) -> None:
        self.num_rows = 0
        self._writer = pq.ParquetWriter(path, schema_of("steps", SUPERSEDED), compression="zstd")
        self._waiting: list[Rows] = []
        self._num_waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure:
            # A full disk has failed already; the library would hide that behind "operation on closed file".
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            return
        self._write()
        self._writer.close()

    def add(self, rows: Rows, counted_until: int | None) -> None:
        """Adds rows. Steps after ``counted_until`` are superseded; None means that all count."""
        if counted_until is None:
            superseded = pa.repeat(False, rows.num_rows)
        else:
            superseded = pc.greater(rows.column("step"), counted_until)
        self._waiting.append(rows.append_column(SUPERSEDED.name, superseded))
        self._num_waiting += rows.num_rows
        self.num_rows += rows.num_rows
        if self._num_waiting >= _ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._num_waiting = [], 0


def _attempt(name: PartName, about: Mapping[bytes, bytes]) -> RecordedAttempt:
    version = about.get(_VERSION)
    if version != str(SCHEMA_VERSION).encode():
        found = version.decode(errors="replace") if version else None
        raise PartError(f"its schema's version is {found}, expected {SCHEMA_VERSION}")
    if about.get(_TABLE) != name.table.encode():
        raise PartError(f"its rows are not {name.table}")
    unknown = dict.fromkeys(("micro_batch", "loss_digest", "attention_kernel"))
    found = {"simulated": False} | unknown | json.loads(about[_ATTEMPT])
    attempt = RecordedAttempt(**{field.name: _fact(found, field.name) for field in fields(RecordedAttempt)})
    if (attempt.run, attempt.term) != (name.run, name.term):
        raise PartError(f"it was recorded by attempt {attempt.term} of {attempt.run}")
    return attempt


def _fact(found: Mapping[str, Any], name: str) -> Any:
    """What the part says of its attempt by that name, if it can be that. Raises ``PartError``."""
    value = found[name]
    is_large = type(value) in (int, float) and not abs(value) <= _MOST_INT
    if type(value) not in _KINDS[name] or is_large or (isinstance(value, str) and not _is_text(value)):
        raise PartError(f"the {name} of its attempt is {value!r:.60}")
    return value


def _is_text(value: str) -> bool:
    """Whether it has no half of a surrogate pair, which no file of a report can hold."""
    return value.encode(errors="replace").decode() == value


def _believed(table: str, rows: Rows) -> Rows:
    """Returns the rows, with null for each number that is none. Raises ``PartError`` where what a row needs
    is missing, or is nothing that a clock could tell.
    """
    rows.validate(full=True)
    for place, column in enumerate(PARTS[table]):
        values = rows.column(place)
        if column.kind == "float":
            most = _MOST_S if column.name in _NEEDED[table] else _MOST_FLOAT
            values = pc.if_else(pc.less_equal(pc.abs(values), most), values, None)
            if column.name in _NEVER_NEGATIVE:
                values = pc.max_element_wise(values, 0.0, skip_nulls=False)
            rows = rows.set_column(place, rows.schema.field(place), values)
        if column.name in _NEEDED[table] and values.null_count:
            raise PartError(f"it has no {column.name} that can be read in {values.null_count} rows")
    return rows


def _completed(table: str, rows: Rows) -> Rows:
    for column in ADDED.get(table, ()):
        if column.name not in rows.column_names:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, _TYPES[column.kind]))
    return rows


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    found = [_number(value) for value in values] if column.kind == "float" else values
    found = [value.text if isinstance(value, LossesBySource) else value for value in found]
    return pa.array(found, type=_TYPES[column.kind])


def _number(value: Any) -> float | None:
    """Reads a number, also one that is still on a device. A device that has failed gives None."""
    if value is None:
        return None
    try:
        number = float(value)
    except RuntimeError:
        return None
    return number if isfinite(number) else None
