"""The bytes behind a position are those that the index names, or nothing is trained on."""

import hashlib
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.training.data import shard_check
from jobs.training.data.shard_check import CheckedShards
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, TokenIndex, TokenShard
from tests.unit.clock_ticks import let_the_clock_tick

ROWS = ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10])
ALL = [number for row in ROWS for number in row]


def written(place: Path, *, with_digests: bool = True) -> tuple[LocalStore, TokenIndex]:
    store, shards = LocalStore(place), []
    for number, ids in enumerate(ROWS):
        data = struct.pack(f"<{len(ids)}H", *ids)
        store.put(f"{number}.bin", data)
        digest = hashlib.sha256(data).hexdigest() if with_digests else None
        shards.append(TokenShard(name=f"{number}.bin", num_tokens=len(ids), sha256=digest))
    return store, TokenIndex(dtype="uint16", shards=tuple(shards))


def versions(store: LocalStore, index: TokenIndex) -> list[str | None]:
    return [store.look(shard.name)[1] for shard in index.shards]


def opened(store: LocalStore, index: TokenIndex, own: tuple[str, ...] = ()) -> CheckedShards:
    return CheckedShards(store, index, versions(store, index), own)


def row_of(shards: CheckedShards, index: TokenIndex) -> list[int]:
    return list(memoryview(Shards(shards, index).read(0, index.num_tokens)).cast("H"))


def compared(shards: CheckedShards) -> CheckedShards:
    shards.start()
    assert shards.wait(timeout_s=30)
    return shards


OWN = ("0.bin", "1.bin", "2.bin")


def test_what_nobody_changed_is_read(tmp_path: Path) -> None:
    store, index = written(tmp_path)
    shards = compared(opened(store, index, OWN))
    shards.confirm()
    assert row_of(shards, index) == ALL


def test_a_flipped_bit_is_found_before_the_first_step_with_both_digests(tmp_path: Path) -> None:
    store, index = written(tmp_path)
    data = bytearray(store.get("1.bin"))
    data[3] ^= 4
    (tmp_path / "1.bin").write_bytes(data)
    shards = compared(opened(store, index, OWN))
    found, expected = hashlib.sha256(data).hexdigest(), index.shards[1].sha256
    problem = (
        f"data: {tmp_path}/1.bin: its bytes are not those that its index names: their SHA-256 is {found}, "
        f"expected {expected}; bring the right file back, or pack the data again"
    )
    for ask in (shards.confirm, lambda: row_of(shards, index)):
        with pytest.raises(DataError) as refused:
            ask()
        assert str(refused.value) == problem


def exchange(place: Path) -> None:
    (place / "0.bin").rename(place / "aside")
    (place / "1.bin").rename(place / "0.bin")
    (place / "aside").rename(place / "1.bin")


def flip(place: Path) -> None:
    file = random.choice(sorted(place.glob("*.bin")))
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    file.write_bytes(data)


def replace(place: Path) -> None:
    (place / "new").write_bytes(os.urandom((place / "2.bin").stat().st_size))
    (place / "new").replace(place / "2.bin")


def turn_back_the_time(place: Path) -> None:
    before = (place / "0.bin").stat()
    (place / "0.bin").write_bytes(struct.pack("<4H", 4, 3, 2, 1))
    os.utime(place / "0.bin", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("damage", [exchange, flip, replace, turn_back_the_time])
@pytest.mark.parametrize("own", [OWN, ()], ids=["hashed by this rank", "hashed by others"])
def test_a_shard_that_changes_after_it_was_compared_is_not_read(
    damage: Callable[[Path], None], own: tuple[str, ...], tmp_path: Path
) -> None:
    store, index = written(tmp_path)
    shards = compared(opened(store, index, own))
    assert row_of(shards, index) == ALL
    let_the_clock_tick(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=r"\.bin: its bytes are not those .* is [0-9a-f]{64}, expected"):
        row_of(shards, index)
    with pytest.raises(DataError, match="its bytes are not those"):
        shards.confirm()


def test_a_shard_that_was_only_touched_or_brought_back_is_compared_again_and_read(tmp_path: Path) -> None:
    store, index = written(tmp_path)
    shards = opened(store, index)
    let_the_clock_tick(tmp_path)
    os.utime(tmp_path / "0.bin")
    (tmp_path / "1.bin").write_bytes((tmp_path / "1.bin").read_bytes())
    assert row_of(shards, index) == ALL


def test_a_shard_without_a_digest_is_read_while_nobody_touches_it(tmp_path: Path) -> None:
    store, index = written(tmp_path, with_digests=False)
    hashing, other = compared(opened(store, index, OWN)), opened(store, index)
    assert row_of(hashing, index) == row_of(other, index) == ALL
    let_the_clock_tick(tmp_path)
    os.utime(tmp_path / "0.bin")
    assert row_of(hashing, index) == ALL
    (tmp_path / "1.bin").write_bytes(bytes(8))
    with pytest.raises(DataError, match=r"1\.bin: its bytes are not those that this run began with: "):
        row_of(hashing, index)
    with pytest.raises(DataError, match=r"0\.bin: was changed since this run started, and nothing tells"):
        row_of(other, index)


def test_a_shard_that_was_cut_is_named_with_the_token_that_lacks(tmp_path: Path) -> None:
    store, index = written(tmp_path)
    shards = opened(store, index)
    os.truncate(tmp_path / "1.bin", 4)
    with pytest.raises(DataError, match=r"1\.bin was cut short: token 2 of 4 is not there"):
        row_of(shards, index)
    with pytest.raises(
        DataError, match=r"1\.bin: has 4 bytes, expected 8 for the tokens in its index; bring"
    ):
        compared(opened(store, index, OWN)).confirm()


def test_a_shard_that_changes_at_each_look_is_refused(tmp_path: Path) -> None:
    class Restless(LocalStore):
        def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
            let_the_clock_tick(self.root)
            os.utime(self.root / name)
            return super().read(name, start, into)

    _, index = written(tmp_path)
    shards = opened(Restless(tmp_path), index)
    with pytest.raises(DataError, match=r"0\.bin: changes while it is read; leave it alone during a run"):
        row_of(shards, index)


def test_a_small_shard_takes_little_memory_to_be_compared(tmp_path: Path) -> None:
    """Thousands of small shards took a millisecond each, for memory that they did not need."""
    _, index = written(tmp_path)
    shards = opened(LocalStore(tmp_path), index, OWN)
    tracemalloc.start()
    try:
        compared(shards).confirm()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_digest_of_bytes_of_two_versions_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_check, "_READ_BYTES", 4)

    class Touched(LocalStore):
        def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
            count, version = super().read(name, start, into)
            return count, f"{version} {start}"

    _, index = written(tmp_path)
    shards = compared(opened(Touched(tmp_path), index, OWN))
    with pytest.raises(DataError, match=r"0\.bin: changes while it is read"):
        shards.confirm()


def test_a_store_without_versions_is_compared_once(tmp_path: Path) -> None:
    _, index = written(tmp_path)
    store = MemoryStore()
    for shard in index.shards:
        store.put(shard.name, (tmp_path / shard.name).read_bytes())
    store.put("1.bin", bytes(8))
    shards = compared(CheckedShards(store, index, (None, None, None), OWN))
    with pytest.raises(DataError, match=r"memory:/1\.bin: its bytes are not those"):
        shards.confirm()


def test_a_store_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(LocalStore):
        num_left = 2

        def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
            self.num_left -= 1
            if self.num_left >= 0:
                raise Unavailable("store: away")
            return super().read(name, start, into)

    monkeypatch.setattr(shard_check, "_AGAIN_AFTER_S", 0.001)
    _, index = written(tmp_path)
    (tmp_path / "0.bin").write_bytes(bytes(8))
    shards = compared(opened(Away(tmp_path), index, OWN))
    with pytest.raises(DataError, match=r"0\.bin: its bytes are not those"):
        shards.confirm()


def test_a_large_share_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, index = written(tmp_path)
    assert not opened(store, index, OWN).wait(timeout_s=0)
    monkeypatch.setattr(shard_check, "WAITED_FOR_BYTES", 19)
    assert opened(store, index, OWN).wait(timeout_s=0)


def test_sources_side_by_side_share_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = written(tmp_path)
    found = versions(store, index)
    monkeypatch.setattr(shard_check, "WAITED_FOR_BYTES", 40)
    waits = [
        not CheckedShards(store, index, found, OWN, num_sources=number).wait(0.0) for number in (1, 2, 3)
    ]
    assert waits == [True, True, False]


def test_nothing_is_hashed_for_a_reader_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gated(LocalStore):
        begun, gate, num_reads = Event(), Event(), 0

        def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
            self.begun.set()
            assert self.gate.wait(timeout=30)
            Gated.num_reads += 1
            return super().read(name, start, into)

    monkeypatch.setattr(shard_check, "_READ_BYTES", 2)
    _, index = written(tmp_path)
    shards = opened(Gated(tmp_path), index, OWN)
    shards.start()
    assert Gated.begun.wait(timeout=30)
    (thread,) = (one for one in threading.enumerate() if one.name == "shard check")
    del shards
    Gated.gate.set()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert Gated.num_reads == 1


class Panic(BaseException):
    """As what a library in Rust raises, which is no ``Exception``."""


def test_whatever_ends_the_background_ends_the_attempt_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, index = written(tmp_path)
    shards = opened(store, index, OWN)

    def panic(*_: object) -> object:
        raise Panic("index out of bounds")

    monkeypatch.setattr(LocalStore, "read", panic)
    shards.start()
    assert shards.wait(timeout_s=30)
    with pytest.raises(DataError, match=r"shards can't be compared: Panic: index out of bounds"):
        shards.confirm()
