"""Reads Parquet files of ids as token shards: the rows of one column, whole numbers or lists, joined.

Only the footer and that column's bytes are read, a million ids at a time, from any store.
"""

import hashlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
import pyarrow.parquet

from checkpointing.stores.contract import Missing
from jobs.training.data.formats.stored_file import READ_BYTES, StoredFile
from jobs.training.data.shards import Copyable
from jobs.training.task.token_index import DataError, TokenShard

# The names that tools which make such files use for the column.
_COLUMNS = ("input_ids", "ids", "tokens")
_MOST_VALUES = 2**53
# A file of a few bytes may tell of any number of ids, and Arrow makes room for them.
_AT_ONCE = 2**20
_MOST_IN_GROUP, _MOST_IDS_PER_BYTE = 2**26, 8
# Parsed, a footer takes twenty times its bytes, and sixteen are read at once.
_MOST_FOOTER_BYTES = 2**23
_TAIL = struct.Struct("<I4s")


def describe(store: Copyable, name: str) -> TokenShard:
    """Describes a file from its footer alone; ``sha256`` is the footer's.

    Raises ``DataError`` if the footer lacks the number of ids.
    """
    with _opened(store, name) as (file, where):
        column = _column(file, where)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        statistics = [_leaf(group, column).statistics for group in groups]
        if not all(of_group and of_group.has_null_count for of_group in statistics):
            raise DataError(f"{where}: doesn't say how many ids it has; write it with statistics")
        if not all(0 <= of_group.num_values < _MOST_VALUES for of_group in statistics):
            raise DataError(f"{where}: tells of less than no ids, or of more than there are; write it again")
        largest = [of_group.max for of_group in statistics if of_group.has_min_max]
        return TokenShard(
            name=name,
            sha256=_digest(file),
            num_tokens=sum(of_group.num_values for of_group in statistics),
            largest_id=max(largest) if len(largest) == len(statistics) and largest else None,
        )


def ids_of(store: Copyable, shard: TokenShard) -> Iterator[bytes]:
    """All ids as little-endian uint32, about a million at a time."""
    with _opened(store, shard.name) as (file, where):
        if shard.sha256 not in (None, _digest(file)):
            raise DataError(f"{where}: is another file than when the run began; bring that one back")
        column = _column(file, where)
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            num_values = _leaf(group, column).num_values
            if num_values > max(_MOST_IN_GROUP, _MOST_IDS_PER_BYTE * store.size(shard.name)):
                raise DataError(
                    f"{where}: its row group {number} tells of {num_values:,} ids, more than fit its bytes; "
                    "write it in smaller row groups"
                )
            num_rows = max(1, group.num_rows * _AT_ONCE // max(1, num_values))
            for batch in file.iter_batches(min(num_rows, _AT_ONCE), row_groups=[number], columns=[column]):
                yield _flat(batch.column(0), where).to_numpy(zero_copy_only=False).tobytes()


def _digest(file: Any) -> str:
    return hashlib.sha256(repr(file.metadata.to_dict()).encode()).hexdigest()


def _column(file: Any, where: str) -> str:
    names = file.schema_arrow.names
    column = next((name for name in _COLUMNS if name in names), None)
    if column is None:
        raise DataError(
            f"{where}: has no column of ids ({names!r:.80}); expected one of {', '.join(_COLUMNS)}, or "
            "text for `longhaul pack`"
        )
    kind = file.schema_arrow.field(column).type
    if not pyarrow.types.is_integer(getattr(kind, "value_type", kind)):
        raise DataError(
            f"{where}: its column {column!r} holds {kind}, expected whole numbers or lists of them"
        )
    return column


def _leaf(group: Any, column: str) -> Any:
    leaves = (group.column(number) for number in range(group.num_columns))
    return next(leaf for leaf in leaves if leaf.path_in_schema.partition(".")[0] == column)


def _flat(chunk: Any, where: str) -> Any:
    if chunk.null_count:
        raise DataError(f"{where}: {chunk.null_count:,} of its rows are null; write it without")
    ids = chunk.flatten() if hasattr(chunk.type, "value_type") else chunk
    if ids.null_count:
        raise DataError(f"{where}: {ids.null_count:,} of its ids are null; write it without")
    try:
        return ids.cast(pyarrow.uint32())
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{where}: has an id that is none ({str(error).splitlines()[0]})") from None


@contextmanager
def _opened(store: Copyable, name: str) -> Iterator[tuple[Any, str]]:
    where = f"data: {store.url}/{name}"
    try:
        _check_footer(store, name, where)
        buffered = io.BufferedReader(StoredFile(store, name), READ_BYTES)
        with pyarrow.parquet.ParquetFile(buffered, page_checksum_verification=True) as file:
            yield file, where
    except Missing:
        raise DataError(f"{where} is gone; bring it back") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # A system error. Arrow raises OSError for bad contents too, but without an errno.
        raise DataError(f"{where}: is no whole Parquet file ({str(error).partition(chr(10))[0]})") from None


def _check_footer(store: Copyable, name: str, where: str) -> None:
    """Raises ``DataError`` of a footer that is too large to be parsed."""
    tail = bytearray(_TAIL.size)
    store.get_range(name, max(0, store.size(name) - _TAIL.size), memoryview(tail))
    num_bytes, magic = _TAIL.unpack(tail)
    if magic == b"PAR1" and num_bytes > _MOST_FOOTER_BYTES:
        raise DataError(
            f"{where}: its footer has {num_bytes:,} bytes, expected at most {_MOST_FOOTER_BYTES:,}; write it "
            "in larger row groups, without the other columns"
        )
