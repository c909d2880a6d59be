"""Parquet files of ids that a stranger wrote: what their footers tell is bounded before it is believed."""

import io
import struct
from collections.abc import Callable

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.training.data.formats import parquet_tokens
from jobs.training.data.formats.parquet_tokens import describe, ids_of
from jobs.training.task.token_index import DataError

NUM_IDS = 1000


def stored(ids: object, name: str = "ids", **options: object) -> MemoryStore:
    file, store = io.BytesIO(), MemoryStore()
    pyarrow.parquet.write_table(pyarrow.table({name: ids}), file, **options)
    store.put("a.parquet", file.getvalue())
    return store


def with_count(store: MemoryStore, count: int) -> MemoryStore:
    """The same file, whose footer tells of as many ids and rows."""
    body = store.get("a.parquet")
    footer = len(body) - 8 - struct.unpack("<I", body[-8:-4])[0]
    assert len(_varint(count)) == len(_varint(NUM_IDS)) and _varint(NUM_IDS) in body[footer:]
    store.put("a.parquet", body[:footer] + body[footer:].replace(_varint(NUM_IDS), _varint(count)))
    return store


def _varint(count: int) -> bytes:
    """As Thrift writes a number: its sign last, seven bits in a byte."""
    rest, parts = (count << 1) ^ (count >> 63), bytearray()
    while rest > 127:
        parts.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*parts, rest])


@pytest.mark.parametrize("ids", [[5] * NUM_IDS, [[7] * 300, [8, 9], [10] * 698]])
def test_ids_are_the_same_however_few_come_at_once(
    ids: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(ids)
    whole = b"".join(ids_of(store, describe(store, "a.parquet")))
    assert len(whole) == 4 * NUM_IDS
    monkeypatch.setattr(parquet_tokens, "_AT_ONCE", 100)
    parts = list(ids_of(store, describe(store, "a.parquet")))
    assert b"".join(parts) == whole and len(parts) > 2


def test_a_footer_that_tells_of_less_than_no_ids_is_refused() -> None:
    with pytest.raises(DataError, match=r"a\.parquet: tells of less than no ids"):
        describe(with_count(stored([5] * NUM_IDS), -NUM_IDS), "a.parquet")


def test_more_ids_than_fit_a_file_s_bytes_are_refused_before_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_tokens, "_MOST_IN_GROUP", NUM_IDS)
    store = stored([5] * NUM_IDS)
    assert len(b"".join(ids_of(store, describe(store, "a.parquet")))) == 4 * NUM_IDS
    with_count(store, 8000)
    shard = describe(store, "a.parquet")
    assert shard.num_tokens == 8000 > 8 * store.size("a.parquet")
    with pytest.raises(DataError, match=r"row group 0 tells of 8,000 ids, more than fit its bytes"):
        next(ids_of(store, shard))


@pytest.mark.parametrize("damage", [lambda body: body[:7], lambda body: b"PAR1"])
def test_a_file_that_ends_early_is_no_whole_one(damage: Callable[[bytes], bytes]) -> None:
    store = stored([5])
    store.put("a.parquet", damage(store.get("a.parquet")))
    with pytest.raises(DataError, match=r"a\.parquet: is no whole Parquet file"):
        describe(store, "a.parquet")


def test_a_footer_that_is_too_large_to_be_parsed_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = stored([5])
    monkeypatch.setattr(parquet_tokens, "_MOST_FOOTER_BYTES", 100)
    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", None)
    with pytest.raises(DataError, match=r"its footer has [0-9,]+ bytes, expected at most 100; write"):
        describe(store, "a.parquet")


def test_columns_without_ids_are_named_shortly() -> None:
    with pytest.raises(DataError, match=r"has no column of ids \(\['c{,80}\); expected one of input_ids"):
        describe(stored([5], name="c" * 2000), "a.parquet")
    with pytest.raises(DataError, match=r"\['x\\x1b\[2J'\]") as refused:
        describe(stored([5], name="x\x1b[2J"), "a.parquet")
    assert str(refused.value).isprintable()
