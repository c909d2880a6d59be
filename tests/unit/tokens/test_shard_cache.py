"""Shards copied to a node's own disk: whole, compared, bounded; and what is read where they are not."""

import hashlib
import io
import os
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
from jobs.training.data.formats.parquet_tokens import describe
from jobs.training.data.shard_cache import ShardCache
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, TokenIndex, TokenShard
from tests.unit.clock_ticks import let_the_clock_tick
from tests.unit.foreign_mounts import mounted
from tests.unit.other_user import NOBODY, as_nobody, common_folder, needs_root


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


class MovedStore:
    """A store by another name."""

    def __init__(self, store: CountingStore, url: str) -> None:
        self.url = url
        self.size, self.get_range = store.size, store.get_range


def packed(*rows: list[int]) -> tuple[CountingStore, TokenIndex]:
    store, shards = CountingStore(), []
    for number, ids in enumerate(rows):
        data = struct.pack(f"<{len(ids)}H", *ids)
        store.put(f"{number}.bin", data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(TokenShard(name=f"{number}.bin", num_tokens=len(ids), sha256=digest))
    return store, TokenIndex(dtype="uint16", shards=tuple(shards))


def cache(store: MemoryStore, index: TokenIndex, folder: Path, limit_bytes: int = 10**6) -> ShardCache:
    return ShardCache(store, index, folder, limit_bytes)


def copied_all(shards: ShardCache) -> None:
    thread = shards.copy_all()
    thread.join(timeout=30)
    assert not thread.is_alive()


def row_of(shards: ShardCache, index: TokenIndex) -> list[int]:
    read = Shards(shards, index).read(0, index.num_tokens)
    return list(memoryview(read).cast("H" if index.dtype == "uint16" else "I"))


def test_what_was_copied_is_read_without_the_store_by_all_ranks_of_the_node(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    copied_all(cache(store, index, tmp_path))
    store.is_away = True
    assert row_of(cache(store, index, tmp_path), index) == [1, 2, 3, 4, 5]


def test_a_tilde_is_the_home_of_the_node_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store, index = packed([1, 2, 3])
    copied_all(cache(store, index, Path("~/shards")))
    store.is_away = True
    assert row_of(cache(store, index, tmp_path / "shards"), index) == [1, 2, 3]


def test_what_is_not_there_yet_is_read_from_the_store(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    assert row_of(cache(store, index, tmp_path), index) == [1, 2, 3, 4, 5]
    assert store.num_reads == 2


def test_no_more_is_copied_than_there_is_room_for(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5], [6])
    shards = cache(store, index, tmp_path, limit_bytes=10)
    copied_all(shards)
    files = [path for path in tmp_path.rglob("*.bin") if not path.name.startswith(".")]
    assert {path.name for path in files} == {"0.bin", "1.bin"}
    assert row_of(shards, index) == [1, 2, 3, 4, 5, 6]


def ours(folder: Path) -> Path:
    """Where all of it lies."""
    return folder / f"longhaul-tokens-{os.geteuid()}"


def data_sets(folder: Path) -> set[Path]:
    return {path for path in ours(folder).iterdir() if path.is_dir()}


def test_data_that_was_used_longest_ago_makes_room_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_store, old = packed([1] * 100)
    copied_all(cache(old_store, old, tmp_path))
    [first] = data_sets(tmp_path)
    store, index = packed([2] * 100)
    copied_all(cache(store, index, tmp_path, limit_bytes=400))
    [second] = data_sets(tmp_path) - {first}
    assert first.exists()
    assert caplog.messages == []
    third_store, third = packed([3] * 150)
    copied_all(cache(third_store, third, tmp_path, limit_bytes=400))
    assert len(data_sets(tmp_path)) == 1
    assert sorted(caplog.messages) == sorted(
        f"data.local: removed {gone}, 200 bytes of other data, to make room" for gone in (first, second)
    )


# What lies beside our folder, or within it, and is not ours by its name or has no mark.
THEIRS = (
    "notes.txt",
    "photos/1.jpg",
    "0123456789abcdef/0.bin",
    "0123456789abcdef/.longhaul-tokens",
    "runs/r@l/gen/000000000010-t1-s1/rank-00000.json",
    "longhaul-tokens-99999/0123456789abcdef/.longhaul-tokens",
    "OURS/0123456789abcdef/0.bin",
    "OURS/my-tokens/.longhaul-tokens",
    "OURS/my-tokens/0.bin",
    "OURS/0123456789abcdef0/.longhaul-tokens",
    "OURS/notes.txt",
)


def test_making_room_deletes_only_what_has_our_name_and_mark(tmp_path: Path) -> None:
    copied_all(cache(*packed([1] * 100), tmp_path))
    [old] = data_sets(tmp_path)
    theirs = [tmp_path / name.replace("OURS", ours(tmp_path).name) for name in THEIRS]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs" * 1000)
    store, index = packed([2] * 100)
    shards = cache(store, index, tmp_path, limit_bytes=200)
    copied_all(shards)
    assert not old.exists()
    assert [path for path in theirs if not path.exists()] == []
    assert row_of(shards, index) == [2] * 100


def test_data_sets_of_one_run_make_no_room_for_each_other_and_take_their_shares(tmp_path: Path) -> None:
    stores = [packed([number] * 50, [number] * 50) for number in range(3)]
    old_store, old_index = packed([9] * 40)
    copied_all(cache(old_store, old_index, tmp_path))
    mine = [
        ShardCache(MovedStore(store, f"memory:/{number}"), index, tmp_path, 450, share_bytes=share)
        for number, ((store, index), share) in enumerate(zip(stores, (200, 200, 50), strict=True))
    ]
    for _ in range(2):
        for one in mine:
            one.copy_all(mine).join(timeout=30)
    for number, (store, index) in enumerate(stores):
        before = store.num_reads
        assert row_of(mine[number], index) == [number] * 100
        # The last one's shards are larger than its share.
        assert (store.num_reads > before) == (number == 2)
    before = old_store.num_reads
    row_of(cache(old_store, old_index, tmp_path), old_index)
    assert old_store.num_reads > before, "older data of another run had to go"


def test_making_room_follows_no_link(tmp_path: Path) -> None:
    copied_all(cache(*packed([1] * 100), tmp_path))
    [old] = data_sets(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    for name in (".longhaul-tokens", "below/file"):
        (elsewhere / name).write_bytes(b"precious")
    (ours(tmp_path) / "0123456789abcdef").symlink_to(elsewhere)
    (old / "link").symlink_to(elsewhere / "below")
    copied_all(cache(*packed([2] * 100), tmp_path, limit_bytes=200))
    assert not old.exists()
    assert bytes_in(elsewhere) == 16


KILLED_AS_IT_REMOVES = """
import os, signal, sys
from pathlib import Path
from checkpointing.stores.local import LocalStore
from jobs.training.data.shard_cache import ShardCache
from jobs.training.task.token_index import TokenIndex, TokenShard

far, cache, num_left = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
unlink = os.unlink

def unlink_or_die(*args, **more):
    global num_left
    if num_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    num_left -= 1
    unlink(*args, **more)

os.unlink = unlink_or_die
index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=100),))
ShardCache(LocalStore(far), index, cache, 200).copy_all()
"""


# Two shards, their locks and seals, and the mark.
@pytest.mark.parametrize("num_removed", range(7))
def test_what_was_half_removed_when_a_process_was_killed_is_still_ours(
    tmp_path: Path, num_removed: int
) -> None:
    copied_all(cache(*packed([1] * 100, [2] * 100), tmp_path))
    [old] = data_sets(tmp_path)
    command = [sys.executable, "-c", KILLED_AS_IT_REMOVES, tmp_path / "far", tmp_path, str(num_removed)]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[3], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len([*old.iterdir()]) == 7 - num_removed
    (old / "1.bin").write_bytes(b"so that it has to go")
    copied_all(cache(*packed([3] * 100), tmp_path, limit_bytes=200))
    assert not old.exists()


def test_our_folder_is_for_this_user_alone(tmp_path: Path) -> None:
    copied_all(cache(*packed([1]), tmp_path / "new"))
    assert ours(tmp_path / "new").stat().st_mode & 0o777 == 0o700


def refused(store: MemoryStore, index: TokenIndex, folder: Path) -> str:
    """What all that copy or read get alike."""
    with pytest.raises(DataError) as copying:
        cache(store, index, folder).copy_all()
    with pytest.raises(DataError) as reading:
        row_of(cache(store, index, folder), index)
    assert str(copying.value) == str(reading.value)
    assert "\n" not in str(reading.value)
    return str(reading.value)


def test_a_folder_of_our_name_that_anybody_else_may_write_to_is_refused(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    ours(tmp_path).mkdir(mode=0o755)
    assert refused(store, index, tmp_path) == (
        f"data: {ours(tmp_path)} has mode 0755; expected a folder of user {os.geteuid()} alone, of mode "
        "0700; remove it, or name another folder by data.local.dir"
    )
    ours(tmp_path).rmdir()
    ours(tmp_path).write_text("")
    assert f"{ours(tmp_path)} is no folder; expected" in refused(store, index, tmp_path)


PLANTS = """
from pathlib import Path
kind, ours, data_set, victim = sys.argv[1], *map(Path, sys.argv[2:])
become()
match kind:
    case "link to a folder":
        ours.symlink_to(victim.parent)
    case "link to nothing":
        ours.symlink_to(victim.parent / "new")
    case _:
        (ours / data_set).mkdir(parents=True)
        ours.chmod(0o777 if kind == "open to all" else 0o700)
        (ours / data_set / "0.bin").write_bytes(bytes([7, 0] * 3))
        (ours / data_set / ".1.bin.tmp").symlink_to(victim)
        (ours / data_set / ".1.bin.lock").symlink_to(victim)
"""


@needs_root
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("link to a folder", "is a link"),
        ("link to nothing", "is a link"),
        ("open to all", f"belongs to user {NOBODY}"),
        ("closed", f"belongs to user {NOBODY}"),
    ],
)
def test_nothing_that_another_user_planted_is_trained_on_or_written_through(
    kind: str, says: str, tmp_path: Path
) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    copied_all(cache(store, index, tmp_path / "trial"))
    [data_set] = data_sets(tmp_path / "trial")
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine alone")
    with common_folder() as common:
        as_nobody(PLANTS, kind, ours(common), data_set.name, victim)
        assert f"{ours(common)} {says}; expected a folder of user 0 alone" in refused(store, index, common)
        assert victim.read_text() == "mine alone"
        assert {path.name for path in tmp_path.iterdir()} == {"trial", "authorized_keys"}


def test_nothing_is_trained_on_from_what_another_user_s_program_answers_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    copied_all(cache(store, index, tmp_path))
    with mounted(tmp_path, "fuse.sshfs any rw,user_id=12345,allow_other", monkeypatch):
        says = f"{ours(tmp_path)} is mounted by a program of user 12345; expected a folder of user"
        assert says in refused(store, index, tmp_path)


def bytes_in(folder: Path) -> int:
    """Those of all files but seals."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".seal")
    return sum(path.stat().st_size for path in files)


def test_a_lower_limit_holds_for_what_was_copied_under_a_higher_one(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5], [6])
    copied_all(cache(store, index, tmp_path))
    shards = cache(store, index, tmp_path, limit_bytes=10)
    copied_all(shards)
    assert bytes_in(tmp_path) == 10
    assert row_of(shards, index) == [1, 2, 3, 4, 5, 6]


KILLED_AT_ITS_SECOND_READ = """
import os, signal, sys
from pathlib import Path
from checkpointing.stores.local import LocalStore
from jobs.training.data.shard_cache import ShardCache
from jobs.training.task.token_index import TokenIndex, TokenShard

class Killing(LocalStore):
    num_reads = 0

    def get_range(self, name, start, into):
        self.num_reads += 1
        if self.num_reads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_range(name, start, into)

far, cache, num_tokens = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=num_tokens),))
ShardCache(Killing(far), index, cache, 10**9).copy_all().join()
"""


def test_what_a_process_left_that_was_killed_while_it_copied_a_shard_is_gone_once_it_is_copied(
    tmp_path: Path,
) -> None:
    far, folder, num_tokens = LocalStore(tmp_path / "far"), tmp_path / "cache", 5 * 2**20
    far.put("0.bin", bytes(2 * num_tokens))
    command = [sys.executable, "-c", KILLED_AT_ITS_SECOND_READ, str(far.root), str(folder), str(num_tokens)]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[3], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert bytes_in(folder) > 0
    index = TokenIndex(dtype="uint16", shards=(TokenShard(name="0.bin", num_tokens=num_tokens),))
    copied_all(ShardCache(far, index, folder, 10**9))
    assert bytes_in(folder) == 2 * num_tokens


@pytest.mark.parametrize("damage", [b"\xff\xff\x00\x00\x00\x00", b"\x01\x00"])
def test_a_shard_with_other_bytes_than_its_index_names_is_found_and_not_kept(
    damage: bytes, tmp_path: Path
) -> None:
    store, index = packed([1, 2, 3])
    store.put("0.bin", damage)
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    with pytest.raises(DataError, match=r"memory:/0\.bin: its bytes are not those that its index names"):
        shards.get_range("0.bin", 0, memoryview(bytearray(2)))
    store.put("0.bin", struct.pack("<3H", 1, 2, 3))
    assert row_of(cache(store, index, tmp_path), index) == [1, 2, 3]


@pytest.mark.parametrize("left", [b"", b"\x07", b"\x07" * 7])
def test_a_cached_file_that_a_power_cut_left_with_another_size_is_copied_again(
    left: bytes, tmp_path: Path
) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    copied_all(cache(store, index, tmp_path))
    (found,) = tmp_path.rglob("0.bin")
    found.write_bytes(left)
    shards = cache(store, index, tmp_path)
    assert row_of(shards, index) == [1, 2, 3, 4, 5]
    copied_all(shards)
    store.is_away = True
    assert row_of(shards, index) == [1, 2, 3, 4, 5]


def test_a_copy_that_somebody_changed_is_not_read_and_copied_again_though_its_size_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, index = packed([1, 2, 3], [4, 5])
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    assert row_of(shards, index) == [1, 2, 3, 4, 5]
    (found,) = tmp_path.rglob("0.bin")
    let_the_clock_tick(tmp_path)
    found.write_bytes(struct.pack("<3H", 9, 9, 9))
    assert row_of(shards, index) == [1, 2, 3, 4, 5]
    later = cache(store, index, tmp_path)
    copied_all(later)
    assert caplog.messages == [f"data.local: {found} was changed by somebody; it is copied again"]
    store.is_away = True
    assert row_of(later, index) == [1, 2, 3, 4, 5]


def test_a_copy_that_another_one_was_moved_over_is_not_read(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5, 6])
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    (first,), (second,) = tmp_path.rglob("0.bin"), tmp_path.rglob("1.bin")
    let_the_clock_tick(tmp_path)
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert row_of(shards, index) == [1, 2, 3, 4, 5, 6]
    assert store.num_reads > 2


@pytest.mark.parametrize("change", ["write", "move"])
def test_nor_is_it_filled_from_while_it_is_open(change: str, tmp_path: Path) -> None:
    store, index = packed([1, 2, 3], [4, 5, 6])
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    row_of(shards, index)  # Its seal is looked at.
    room = bytearray(4)
    pieces = [(2, memoryview(room))]
    assert shards.fill("0.bin", pieces) and room == struct.pack("<2H", 2, 3)
    (first,), (second,) = tmp_path.rglob("0.bin"), tmp_path.rglob("1.bin")
    let_the_clock_tick(tmp_path)
    if change == "write":
        first.write_bytes(struct.pack("<3H", 9, 9, 9))
    else:
        second.rename(first)
    assert not shards.fill("0.bin", pieces)


def test_a_copy_without_a_seal_is_not_read(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    copied_all(cache(store, index, tmp_path))
    for seal in tmp_path.rglob(".*.seal"):
        seal.write_bytes(seal.read_bytes()[:70])
    store.is_away = True
    with pytest.raises(Unavailable):
        row_of(cache(store, index, tmp_path), index)


def test_bytes_that_a_disk_lost_end_the_attempt_with_both_digests_and_are_then_copied_again(
    tmp_path: Path,
) -> None:
    store, index = packed([1, 2, 3])
    copied_all(cache(store, index, tmp_path))
    (found,), (seal,) = tmp_path.rglob("0.bin"), tmp_path.rglob(".0.bin.seal")
    found.write_bytes(struct.pack("<3H", 1, 2, 7))
    # As if nobody had written it: the seal has the version that the copy has now.
    status, sha256 = found.stat(), index.shards[0].sha256
    seal.write_text(
        f"{sha256} {status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}\n", encoding="utf-8"
    )
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    lost = hashlib.sha256(found.read_bytes()).hexdigest()
    with pytest.raises(DataError, match=f"0.bin: this node's copy .* is {lost}, expected {sha256}; look"):
        shards.confirm()
    later = cache(store, index, tmp_path)
    copied_all(later)
    store.is_away = True
    assert row_of(later, index) == [1, 2, 3]


def test_a_store_that_is_away_while_shards_are_copied_is_the_readers_to_notice(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    store.is_away = True
    shards = cache(store, index, tmp_path)
    copied_all(shards)
    with pytest.raises(Unavailable):
        row_of(shards, index)
    store.is_away = False
    assert row_of(shards, index) == [1, 2, 3]


def test_a_shard_that_vanished_from_the_store_is_missing_here_too(tmp_path: Path) -> None:
    store, index = packed([1, 2, 3])
    store.delete("0.bin")
    with pytest.raises(Missing):
        cache(store, index, tmp_path).get_range("0.bin", 0, memoryview(bytearray(2)))


# Parquet.

LISTS = [[1, 2], [], [3], [4, 5, 70_000]]
IDS = [1, 2, 3, 4, 5, 70_000]


def as_parquet(column: Any, name: str = "input_ids", row_group_size: int = 2) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"other": pyarrow.array(range(len(column))), name: column})
    pyarrow.parquet.write_table(table, file, row_group_size=row_group_size)
    return file.getvalue()


def with_parquet(column: Any) -> tuple[MemoryStore, TokenIndex]:
    store = MemoryStore()
    store.put("a.parquet", as_parquet(column))
    return store, TokenIndex(dtype="uint32", shards=(describe(store, "a.parquet"),))


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
    assert row_of(cache(store, index, tmp_path), index) == IDS


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pyarrow.array([1, -2, 3]), r"a\.parquet: has an id that is none .*-2"),
        (pyarrow.array([[1, None]], type=pyarrow.list_(pyarrow.int64())), "1 of its ids are null"),
        (pyarrow.array([[1], None], type=pyarrow.list_(pyarrow.int64())), "1 of its rows are null"),
        (pyarrow.array([1, None]), "1 of its rows are null"),
    ],
)
def test_ids_that_are_none_are_refused_where_they_are_read(column: Any, says: str, tmp_path: Path) -> None:
    store, index = with_parquet(column)
    with pytest.raises(DataError, match=says):
        row_of(cache(store, index, tmp_path), index)


def test_parquet_that_was_replaced_or_cut_or_removed_is_named(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    whole = store.get("a.parquet")
    store.put("a.parquet", as_parquet(pyarrow.array([9, 9, 9, 9, 9, 9])))
    with pytest.raises(DataError, match=r"a\.parquet: is another file than when the run began"):
        row_of(cache(store, index, tmp_path), index)
    store.put("a.parquet", whole[:-9])
    with pytest.raises(DataError, match=r"a\.parquet: is no whole Parquet file"):
        row_of(cache(store, index, tmp_path), index)
    store.put("a.parquet", b"")
    with pytest.raises(DataError, match=r"a\.parquet: is no whole Parquet file"):
        row_of(cache(store, index, tmp_path), index)
    store.delete("a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet is gone; bring it back"):
        row_of(cache(store, index, tmp_path), index)


def test_a_cached_file_of_parquet_that_a_power_cut_left_short_is_decoded_again(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    copied_all(cache(store, index, tmp_path))
    (found,) = tmp_path.rglob("a.parquet")
    found.write_bytes(b"")
    assert row_of(cache(store, index, tmp_path), index) == IDS


def test_parquet_with_more_or_fewer_ids_than_its_footer_told_is_refused(tmp_path: Path) -> None:
    store, _ = with_parquet(pyarrow.array(IDS))
    for num_tokens in (5, 7):
        index = TokenIndex(dtype="uint32", shards=(TokenShard(name="a.parquet", num_tokens=num_tokens),))
        with pytest.raises(DataError, match=r"a\.parquet: its bytes are not those that its footer names"):
            row_of(cache(store, index, tmp_path), index)


def test_parquet_with_a_broken_page_is_named(tmp_path: Path) -> None:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"ids": IDS}), file, use_dictionary=False)
    page = pyarrow.parquet.ParquetFile(file).metadata.row_group(0).column(0).data_page_offset
    store = MemoryStore()
    store.put("a.parquet", file.getvalue()[:page] + b"\xff" * 20 + file.getvalue()[page + 20 :])
    index = TokenIndex(dtype="uint32", shards=(describe(store, "a.parquet"),))
    with pytest.raises(DataError, match=r"^data: memory:/a\.parquet: is no whole Parquet file \(.*\)$"):
        row_of(cache(store, index, tmp_path), index)


def test_parquet_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    store, index = with_parquet(pyarrow.array(IDS))
    with pytest.raises(DataError, match=r"a\.parquet: its decoded ids don't fit in data\.local\.gib"):
        row_of(cache(store, index, tmp_path, limit_bytes=23), index)
