"""Shards brought to a node's own disk: whole, compared, bounded; and what is read where they are not."""

import hashlib
import io
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores.contract import Missing, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.training.data.parquet_tokens import look
from jobs.training.data.shard_cache import NearShards
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, TokenIndex, TokenShard


class CountingStore(MemoryStore):
    """``num_reads`` counts what was asked of it; away, it answers nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0
        self.is_away = False

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        if self.is_away:
            raise Unavailable("store: away")
        self.num_reads += 1
        return super().get_range(name, start, into)


def packed(*rows: list[int]) -> tuple[CountingStore, TokenIndex]:
    store, shards = CountingStore(), []
    for number, ids in enumerate(rows):
        data = struct.pack(f"<{len(ids)}H", *ids)
        store.put(f"{number}.bin", data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(TokenShard(name=f"{number}.bin", num_tokens=len(ids), sha256=digest))
    return store, TokenIndex(dtype="uint16", shards=tuple(shards))


def near(store: MemoryStore, index: TokenIndex, folder: Path, limit_bytes: int = 10**6) -> NearShards:
    return NearShards(store, index, folder, limit_bytes)


def all_brought(shards: NearShards) -> None:
    thread = shards.bring_all()
    thread.join(timeout=30)
    assert not thread.is_alive()


def row_of(shards: NearShards, index: TokenIndex) -> list[int]:
    read = Shards(shards, index).read(0, index.num_tokens)
    return list(memoryview(read).cast("H" if index.dtype == "uint16" else "I"))


def test_what_was_brought_is_read_without_the_store_by_all_ranks_of_the_node(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    all_brought(near(store, index, tmp_path))
    store.is_away = True
    assert row_of(near(store, index, tmp_path), index) == [1, 2, 3, 4, 5]


def test_a_tilde_is_the_home_of_the_node_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store, index = packed([1, 2, 3])
    all_brought(near(store, index, Path("~/shards")))
    store.is_away = True
    assert row_of(near(store, index, tmp_path / "shards"), index) == [1, 2, 3]


def test_what_is_not_there_yet_is_read_from_the_store(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    assert row_of(near(store, index, tmp_path), index) == [1, 2, 3, 4, 5]
    assert store.num_reads == 2


def test_no_more_is_brought_than_there_is_room_for(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5], [6])
    shards = near(store, index, tmp_path, limit_bytes=10)
    all_brought(shards)
    files = [path for path in tmp_path.rglob("*.bin") if not path.name.startswith(".")]
    assert {path.name for path in files} == {"0.bin", "1.bin"}
    assert row_of(shards, index) == [1, 2, 3, 4, 5, 6]


def test_data_that_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    old_store, old = packed([1] * 100)
    all_brought(near(old_store, old, tmp_path))
    store, index = packed([2] * 100)
    all_brought(near(store, index, tmp_path, limit_bytes=400))
    assert len(list(tmp_path.iterdir())) == 2
    third_store, third = packed([3] * 150)
    all_brought(near(third_store, third, tmp_path, limit_bytes=400))
    assert len(list(tmp_path.iterdir())) == 1


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_lower_limit_holds_for_what_was_brought_under_a_higher_one(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5], [6])
    all_brought(near(store, index, tmp_path))
    shards = near(store, index, tmp_path, limit_bytes=10)
    all_brought(shards)
    assert bytes_in(tmp_path) == 10
    assert row_of(shards, index) == [1, 2, 3, 4, 5, 6]


KILLED_AT_ITS_SECOND_READ = """
import os, signal, sys
from pathlib import Path
from checkpointing.stores.local import LocalStore
from jobs.training.data.shard_cache import NearShards
from jobs.training.task.token_index import TokenIndex, TokenShard

class Killing(LocalStore):
    num_reads = 0

    def get_range(self, name, start, into):
        self.num_reads += 1
        if self.num_reads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_range(name, start, into)

far, near, num_tokens = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=num_tokens),))
NearShards(Killing(far), index, near, 10**9).bring_all().join()
"""


def test_what_a_process_left_that_was_killed_while_it_brought_a_shard_is_gone_once_it_was_brought(
    tmp_path: Path,
) -> None:
    far, folder, num_tokens = LocalStore(tmp_path / "far"), tmp_path / "near", 5 * 2**20
    far.put("0.bin", bytes(2 * num_tokens))
    command = [sys.executable, "-c", KILLED_AT_ITS_SECOND_READ, str(far.root), str(folder), str(num_tokens)]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[3], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert bytes_in(folder) > 0
    index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=num_tokens),))
    all_brought(NearShards(far, index, folder, 10**9))
    assert bytes_in(folder) == 2 * num_tokens


@pytest.mark.parametrize("damage", [b"\xff\xff\x00\x00\x00\x00", b"\x01\x00"])
def test_a_shard_with_other_bytes_than_its_index_names_is_found_and_not_kept(
    damage: bytes, tmp_path: Path
) -> None:
    store, index = packed([1, 2, 3])
    store.put("0.bin", damage)
    shards = near(store, index, tmp_path)
    all_brought(shards)
    with pytest.raises(DataError, match=r"memory:/0\.bin: its bytes are not those that its index names"):
        shards.get_range("0.bin", 0, memoryview(bytearray(2)))
    store.put("0.bin", struct.pack("<3H", 1, 2, 3))
    assert row_of(near(store, index, tmp_path), index) == [1, 2, 3]


@pytest.mark.parametrize("left", [b"", b"\x07", b"\x07" * 7])
def test_a_near_file_that_a_power_cut_left_with_another_size_is_brought_again(
    left: bytes, tmp_path: Path
) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    all_brought(near(store, index, tmp_path))
    (found,) = tmp_path.rglob("0.bin")
    found.write_bytes(left)
    shards = near(store, index, tmp_path)
    assert row_of(shards, index) == [1, 2, 3, 4, 5]
    all_brought(shards)
    store.is_away = True
    assert row_of(shards, index) == [1, 2, 3, 4, 5]


def test_a_store_that_is_away_while_shards_are_brought_is_the_readers_to_notice(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    store.is_away = True
    shards = near(store, index, tmp_path)
    all_brought(shards)
    with pytest.raises(Unavailable):
        row_of(shards, index)
    store.is_away = False
    assert row_of(shards, index) == [1, 2, 3]


def test_a_shard_that_vanished_from_the_store_is_missing_here_too(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    store.delete("0.bin")
    with pytest.raises(Missing):
        near(store, index, tmp_path).get_range("0.bin", 0, memoryview(bytearray(2)))


# Parquet.

LISTS = [[1, 2], [], None, [3], [4, 5, 70_000]]
IDS = [1, 2, 3, 4, 5, 70_000]


def as_parquet(column: Any, name: str = "input_ids", row_group_size: int = 2) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"other": pyarrow.array(range(len(column))), name: column})
    pyarrow.parquet.write_table(table, file, row_group_size=row_group_size)
    return file.getvalue()


def with_parquet(column: Any) -> tuple[MemoryStore, TokenIndex]:
    store = MemoryStore()
    store.put("a.parquet", as_parquet(column))
    return store, TokenIndex(dtype="uint32", shards=(look(store, "a.parquet"),))


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array(IDS),
        pyarrow.array(IDS, type=pyarrow.uint32()),
        pyarrow.array(LISTS, type=pyarrow.list_(pyarrow.int32())),
        pyarrow.array(LISTS, type=pyarrow.large_list(pyarrow.int64())),
        pyarrow.array([IDS[:3], IDS[3:]], type=pyarrow.list_(pyarrow.int32(), 3)),
    ],
)
def test_parquet_of_ids_is_one_row_of_tokens(column: Any, tmp_path: Path) -> None:
    store, index = with_parquet(column)
    assert (index.num_tokens, index.shards[0].largest_id) == (6, 70_000)
    assert row_of(near(store, index, tmp_path), index) == IDS


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pyarrow.array([1, -2, 3]), r"a\.parquet: has an id that is none .*-2"),
        (pyarrow.array([[1, None]], type=pyarrow.list_(pyarrow.int64())), "1 of its ids are null"),
    ],
)
def test_ids_that_are_none_are_refused_where_they_are_read(column: Any, says: str, tmp_path: Path) -> None:
    store, index = with_parquet(column)
    with pytest.raises(DataError, match=says):
        row_of(near(store, index, tmp_path), index)


def test_parquet_that_was_replaced_or_cut_or_removed_is_named(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    whole = store.get("a.parquet")
    store.put("a.parquet", as_parquet(pyarrow.array([9, 9, 9, 9, 9, 9])))
    with pytest.raises(DataError, match=r"a\.parquet: is another file than when the run began"):
        row_of(near(store, index, tmp_path), index)
    store.put("a.parquet", whole[:-9])
    with pytest.raises(DataError, match=r"a\.parquet: is no whole Parquet file"):
        row_of(near(store, index, tmp_path), index)
    store.put("a.parquet", b"")
    with pytest.raises(DataError, match=r"a\.parquet: is no whole Parquet file"):
        row_of(near(store, index, tmp_path), index)
    store.delete("a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet is gone; bring it back"):
        row_of(near(store, index, tmp_path), index)


def test_a_near_file_of_parquet_that_a_power_cut_left_short_is_decoded_again(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    all_brought(near(store, index, tmp_path))
    (found,) = tmp_path.rglob("a.parquet")
    found.write_bytes(b"")
    assert row_of(near(store, index, tmp_path), index) == IDS


def test_parquet_with_more_or_fewer_ids_than_its_footer_told_is_refused(tmp_path: Path) -> None:
    store, _ = with_parquet(pyarrow.array(IDS))
    for num_tokens in (5, 7):
        index = TokenIndex(dtype="uint32", shards=(TokenShard(name="a.parquet", num_tokens=num_tokens),))
        with pytest.raises(DataError, match=r"a\.parquet: its bytes are not those that its footer names"):
            row_of(near(store, index, tmp_path), index)


def test_parquet_with_a_broken_page_is_named(tmp_path: Path) -> None:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"ids": IDS}), file, use_dictionary=False)
    page = pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0).data_page_offset
    store = MemoryStore()
    store.put("a.parquet", file.getvalue()[:page] + b"\xff" * 20 + file.getvalue()[page + 20 :])
    index = TokenIndex(dtype="uint32", shards=(look(store, "a.parquet"),))
    with pytest.raises(DataError, match=r"^data: memory:/a\.parquet: is no whole Parquet file \(.*\)$"):
        row_of(near(store, index, tmp_path), index)


def test_parquet_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    with pytest.raises(DataError, match=r"a\.parquet: its decoded ids don't fit in data\.local\.gib"):
        row_of(near(store, index, tmp_path, limit_bytes=23), index)
