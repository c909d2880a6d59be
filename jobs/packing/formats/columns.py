"""One column of Parquet and Arrow files, in groups of rows: row groups, or record batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
import pyarrow.compute as compute
import pyarrow.ipc
import pyarrow.parquet

from jobs.packing.formats.unpacked import as_stored
from jobs.packing.pieces import InputError, InputFile, StoredObject, TextSpan

# A row of messages takes some ten times its bytes as Python's objects.
_BATCH_ROWS = 256
_MOST_TEXT_BYTES = 2**26
_PEEK_BYTES = 2**16
_FILE_MAGIC = b"ARROW1"
# A file may say that a part of it has any number of bytes, and Arrow asks for as much memory.
_COMPLAINTS = (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError)
# The largest batch of a column: whoever reads one holds all of it.
MOST_BATCH_BYTES = 2**30


def group_sizes(path: InputFile, kind: str, column: str, *, of_messages: bool) -> tuple[int, ...]:
    """The sizes of the groups of rows. Raises ``InputError`` if the file or its column is not as expected."""
    if kind == "arrow":
        return tuple(_batch_sizes(path, column, of_messages))
    with _parquet(path) as file:
        _check_column(file.schema_arrow, path, column, of_messages)
        metadata = file.metadata
        return tuple(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def values_in(span: TextSpan, column: str) -> Iterator[tuple[int, int, Any]]:
    """Yields the values of the span's groups: the group's number, the row's number in it, the value."""
    return (_in_parquet if span.kind == "parquet" else _in_arrow)(span, column)


def group_name(path: InputFile, kind: str, group: int) -> str:
    return f"{path}: {'row group' if kind == 'parquet' else 'record batch'} {group:,}"


def num_rows_before(path: InputFile, group: int) -> int:
    """The number of rows of a Parquet file before a row group."""
    with _parquet(path) as file:
        return sum(file.metadata.row_group(number).num_rows for number in range(group))


def _in_parquet(span: TextSpan, column: str) -> Iterator[tuple[int, int, Any]]:
    with _parquet(span.path) as file:
        is_text = _holds_text(file.schema_arrow.field(column).type)
        for group in range(span.start, span.end):
            with _whole(group_name(span.path, "parquet", group)):
                num_rows = _rows_at_once(span.path, group, column) if is_text else _BATCH_ROWS
                batches = file.iter_batches(num_rows, row_groups=[group], columns=[column])
                values = (value for batch in batches for value in batch.column(0).to_pylist())
                for number, value in enumerate(values):
                    yield group, number, value


def _rows_at_once(path: InputFile, group: int, column: str) -> int:
    """How many rows of texts lie in memory at once. In a small file, a text that stands once in its
    dictionary may be that of each row.
    """
    with _parquet(path, read_dictionary=[column], buffer_size=_PEEK_BYTES) as file:
        first = next(file.iter_batches(1, row_groups=[group], columns=[column]), None)
        values = getattr(first and first.column(0), "dictionary", None)
        longest = compute.max(compute.binary_length(values)).as_py() if values is not None else None
    return max(1, min(_BATCH_ROWS, _MOST_TEXT_BYTES // max(1, longest or 0)))


def _in_arrow(span: TextSpan, column: str) -> Iterator[tuple[int, int, Any]]:
    with _Arrow(span.path, column) as file:
        for group, batch in file.batches(span.start):
            if group >= span.end:
                return
            with _whole(group_name(span.path, "arrow", group)):
                values = (value for rows in _few_rows(batch) for value in rows.to_pylist())
                for number, value in enumerate(values):
                    yield group, number, value


def _few_rows(batch: Any) -> Iterator[Any]:
    return (batch.slice(begin, _BATCH_ROWS) for begin in range(0, len(batch), _BATCH_ROWS))


def _batch_sizes(path: InputFile, column: str, of_messages: bool) -> Iterator[int]:
    with _Arrow(path, column) as file:
        _check_column(file.schema, path, column, of_messages)
        for group, batch in file.batches():
            num_bytes = _num_bytes(batch)
            if num_bytes > MOST_BATCH_BYTES:
                raise InputError(
                    f"{group_name(path, 'arrow', group)} has {num_bytes:,} bytes in column {column!r}, "
                    f"expected at most {MOST_BATCH_BYTES:,}; write it in smaller batches"
                )
            yield num_bytes


def _num_bytes(batch: Any) -> int:
    try:
        return int(batch.nbytes)
    except pyarrow.ArrowTypeError:
        # Older versions can't tell that of texts as views, as polars writes them.
        return int(batch.get_total_buffer_size())


class _Arrow:
    """An Arrow file, or a stream of Arrow in a file, of which one column is read."""

    def __init__(self, path: InputFile, column: str) -> None:
        self._path = path
        self._file = as_stored(path)
        self._is_stream = self._file.read(len(_FILE_MAGIC)) != _FILE_MAGIC
        self.schema = self._open(None).schema
        number = self.schema.get_field_index(column)
        self._options = pyarrow.ipc.IpcReadOptions(included_fields=[number]) if number >= 0 else None

    def __enter__(self) -> "_Arrow":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        """Yields the column in each record batch from number ``start`` on, checked."""
        reader = self._open(self._options)
        number = 0 if self._is_stream else start
        while self._is_stream or number < reader.num_record_batches:
            with _whole(group_name(self._path, "arrow", number)):
                try:
                    batch = reader.read_next_batch() if self._is_stream else reader.get_batch(number)
                except StopIteration:
                    return
                if number >= start:
                    batch.validate(full=True)
            if number >= start:
                yield number, batch.column(0)
            number += 1

    def _open(self, options: Any) -> Any:
        self._file.seek(0)
        try:
            opener = pyarrow.ipc.open_stream if self._is_stream else pyarrow.ipc.open_file
            return opener(self._file, options=options)
        except _COMPLAINTS as error:
            raise _as_input_error(error, f"{self._path}: is no whole Arrow file") from None


def _check_column(schema: Any, path: InputFile, column: str, of_messages: bool) -> None:
    with _whole(f"{path}: its list of columns"):
        names: list[str] = schema.names
    if names.count(column) != 1:
        found = "two columns" if column in names else "no column"
        told = f"{', '.join(names):.200}"
        raise InputError(f"{path}: has {found} {column!r} ({told}); name one with --column")
    kind, expected = schema.field(column).type, "lists of messages" if of_messages else "text"
    if not (_holds_messages(kind) if of_messages else _holds_text(kind)):
        raise InputError(
            f"{path}: column {column!r} holds {kind!s:.80}, expected {expected}; name one with --column"
        )


def _holds_text(kind: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _holds_messages(kind: Any) -> bool:
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    return bool(is_list and pyarrow.types.is_struct(kind.value_type))


def _parquet(path: InputFile, **options: Any) -> Any:
    file = as_stored(path) if isinstance(path, StoredObject) else path
    try:
        return pyarrow.parquet.ParquetFile(file, **options)
    except _COMPLAINTS as error:
        raise _as_input_error(error, f"{path}: is no whole Parquet file") from None


@contextmanager
def _whole(what: str) -> Iterator[None]:
    try:
        yield
    except _COMPLAINTS as error:
        raise _as_input_error(error, f"{what} is not whole, or not UTF-8") from None


def _as_input_error(error: Exception, found: str) -> Exception:
    """Turns Arrow's complaints about a file's contents into ``InputError``.

    Arrow also raises ``OSError`` for bad contents. A real system error has an ``errno`` and is returned
    unchanged.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return InputError(f"{found} ({str(error).partition(chr(10))[0]})")
