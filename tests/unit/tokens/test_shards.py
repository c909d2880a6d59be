"""Any stretch of the long row of tokens, and what is said when a shard is not there any more."""

import struct
import time
from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from jobs.training.data.kept_files import Piece
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


class Slow(MemoryStore):
    """On this node; each piece takes ``takes_s`` on a clock of its own."""

    now_s = takes_s = 0.0

    def fill(self, name: str, pieces: Sequence[Piece]) -> bool:
        self.now_s += self.takes_s * len(pieces)
        return all(self.get_range(name, start, into) == len(into) for start, into in pieces)


@pytest.mark.parametrize(("takes_s", "num_read"), [(0.0, 20), (0.1, 1)])
def test_a_slow_file_system_costs_one_piece_before_all_readers_read(
    takes_s: float, num_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Slow()
    store.takes_s = takes_s
    store.put("0.bin", struct.pack("<40H", *range(40)))
    monkeypatch.setattr(time, "monotonic", lambda: store.now_s)
    shards = Shards(store, TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=40),)))
    ids, read = shards.read_near(range(0, 40, 2), 2, most_s=0.02)
    assert read == set(range(num_read))
    assert struct.unpack_from(f"<{2 * num_read}H", ids) == tuple(range(2 * num_read))


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


def test_what_lies_behind_a_shard_s_ids_in_its_file_belongs_to_no_sample() -> None:
    store = Slow()
    store.put("0.bin", struct.pack("<9H", *range(8), 99))
    store.put("1.bin", struct.pack("<8H", *range(8, 16)))
    shards = tuple(TokenShard(name=f"{number}.bin", num_tokens=8) for number in range(2))
    ids, read = Shards(store, TokenIndex(dtype="uint16", shards=shards)).read_near([4, 5, 8], 4, 1.0)
    assert read == {0, 2}
    assert struct.unpack("<12H", ids) == (4, 5, 6, 7, 0, 0, 0, 0, 8, 9, 10, 11)


def test_each_reading_has_its_own_ids_though_all_use_one_memory() -> None:
    store = Slow()
    store.put("0.bin", struct.pack("<40H", *range(40)))
    shards = Shards(store, TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=40),)))
    for starts, count in (([0, 8], 4), ([20], 4), ([4, 0, 36, 12], 4), ([30, 10], 3)):
        ids, read = shards.read_near(starts, count, 1.0)
        assert read == set(range(len(starts)))
        expected = [start + at for start in starts for at in range(count)]
        assert list(struct.unpack(f"<{len(expected)}H", ids)) == expected
