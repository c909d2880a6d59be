"""Any stretch of the long row of tokens, and what is said when a shard is not there any more."""

import struct
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, TokenDtype, TokenIndex, TokenShard

LETTERS: dict[TokenDtype, str] = {"uint16": "H", "uint32": "I"}


def stored(lists: list[list[int]], dtype: TokenDtype = "uint16") -> tuple[MemoryStore, Shards]:
    store = MemoryStore()
    for number, ids in enumerate(lists):
        store.put(f"{number}.bin", struct.pack(f"<{len(ids)}{LETTERS[dtype]}", *ids))
    entries = [TokenShard(name=f"{number}.bin", num_tokens=len(ids)) for number, ids in enumerate(lists)]
    return store, Shards(store, TokenIndex(dtype=dtype, shards=tuple(entries)))


@given(
    lists=st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=5), min_size=1, max_size=6),
    dtype=st.sampled_from(["uint16", "uint32"]),
    data=st.data(),
)
def test_every_stretch_is_read_as_if_there_were_one_file(
    lists: list[list[int]], dtype: TokenDtype, data: st.DataObject
) -> None:
    row = list(chain(*lists))
    start = data.draw(st.integers(0, len(row)))
    count = data.draw(st.integers(0, len(row) - start))
    _, shards = stored(lists, dtype)
    read = shards.read(start, count)
    assert list(struct.unpack(f"<{count}{LETTERS[dtype]}", read)) == row[start : start + count]


def test_a_token_is_said_to_be_where_it_is() -> None:
    _, shards = stored([[1, 2], [], [3]])
    assert [shards.name_at(token) for token in range(3)] == [
        "memory:/0.bin",
        "memory:/0.bin",
        "memory:/2.bin",
    ]


def test_a_shard_that_vanished_is_named() -> None:
    store, shards = stored([[1, 2], [3, 4]])
    store.delete("1.bin")
    assert shards.read(0, 2) == struct.pack("<2H", 1, 2)
    with pytest.raises(DataError, match=r"^data: memory:/1\.bin is gone; bring it back$"):
        shards.read(1, 2)


def test_a_shard_that_was_cut_short_is_named_with_the_first_token_that_lacks() -> None:
    store, shards = stored([[1, 2], [3, 4, 5, 6]])
    store.put("1.bin", store.get("1.bin")[:5])
    assert shards.read(0, 4) == struct.pack("<4H", 1, 2, 3, 4)
    with pytest.raises(DataError, match=r"1\.bin was cut short: token 2 of 4 is not there"):
        shards.read(1, 5)
