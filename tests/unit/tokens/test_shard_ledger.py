"""What was hashed once is known to all later attempts of a run: its bytes may not change, nor are they read
again while they have not.
"""

import base64
import hashlib
import io
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.log.signing import VARIABLE
from checkpointing.stores.contract import Buffer, Store, Unavailable
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.versions import is_settled
from jobs.training.data import shard_ledger
from jobs.training.data.formats.parquet_tokens import describe
from jobs.training.data.shard_cache import ShardCache
from jobs.training.data.shard_check import CheckedShards
from jobs.training.data.shard_ledger import LedgerWriter, ledger_of, merged, read_ledger
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, KnownShard, TokenIndex, TokenShard
from tests.unit.clock_ticks import let_the_clock_tick

LEDGER = ledger_of("r", 1)
ROWS = ([3, 9, 4, 7, 5], [3, 8, 6, 5, 9])
# All files were written long ago for whoever has this clock.
LATER_S = 2.0**40


class Counting(LocalStore):
    """``num_bytes`` counts what was read of each object."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.num_bytes: dict[str, int] = {}

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        count, version = super().read(name, start, into)
        self.num_bytes[name] = self.num_bytes.get(name, 0) + count
        return count, version


def table_of(ids: Sequence[int]) -> bytes:
    """A file whose footer tells of the ids no more than how many there are, the least and the largest."""
    file = io.BytesIO()
    table = pyarrow.table({"ids": pyarrow.array(ids, type=pyarrow.int64())})
    pyarrow.parquet.write_table(table, file, use_dictionary=False, compression="none")
    return file.getvalue()


def write_tables(place: Path) -> TokenIndex:
    store = LocalStore(place)
    for number, ids in enumerate(ROWS):
        store.put(f"{number}.parquet", table_of(ids))
    shards = tuple(describe(store, f"{number}.parquet") for number in range(len(ROWS)))
    return TokenIndex(dtype="uint32", shards=shards)


def write_shards(place: Path, *, with_digests: bool = True) -> TokenIndex:
    shards = []
    for number, ids in enumerate(ROWS):
        data = struct.pack(f"<{len(ids)}I", *ids)
        LocalStore(place).put(f"{number}.bin", data)
        digest = hashlib.sha256(data).hexdigest() if with_digests else None
        shards.append(TokenShard(name=f"{number}.bin", num_tokens=len(ids), sha256=digest))
    return TokenIndex(dtype="uint32", shards=tuple(shards))


def write_shards_without_digests(place: Path) -> TokenIndex:
    return write_shards(place, with_digests=False)


KINDS = [write_tables, write_shards, write_shards_without_digests]


@dataclass
class Run:
    """One run over the data in a folder, whose attempts have one rank each."""

    place: Path
    index: TokenIndex
    own: Store = field(default_factory=MemoryStore)
    num_attempts: int = 0
    now_s: float = LATER_S

    def attempt(self, store: LocalStore | None = None) -> CheckedShards:
        """Shards as a driver that has just come finds them; nothing was hashed yet."""
        store, names = store or LocalStore(self.place), [shard.name for shard in self.index.shards]
        self.num_attempts += 1
        writer = LedgerWriter(self.own, LEDGER, term=self.num_attempts, rank=0)
        versions = [store.look(name)[1] for name in names]
        known = read_ledger(self.own, LEDGER, names)
        return CheckedShards(store, self.index, versions, names, known, writer.write, lambda: self.now_s)

    def ids(self, shards: CheckedShards, cache: str = "cache") -> list[int]:
        near = ShardCache(shards, self.index, self.place.parent / cache, 10**6)
        copying = near.copy_all()
        copying.join(timeout=30)
        assert not copying.is_alive()
        return list(memoryview(Shards(near, self.index).read(0, self.index.num_tokens)).cast("I"))


def hashed(shards: CheckedShards) -> CheckedShards:
    shards.start()
    assert shards.wait(timeout_s=30)
    return shards


def run_over(tmp_path: Path, write: Callable[[Path], TokenIndex]) -> Run:
    return Run(tmp_path / "data", write(tmp_path / "data"))


def replace_bytes(file: Path, data: bytes) -> None:
    let_the_clock_tick(file.parent, "*")
    file.write_bytes(data)


def flip(file: Path) -> None:
    """Flips a bit in the ids of a file, which is none of its footer's."""
    data = bytearray(file.read_bytes())
    data[data.index(struct.pack("<2q", 4, 7))] ^= 2
    replace_bytes(file, bytes(data))


def exchange(file: Path) -> None:
    """Puts another file of the same length and the same footer into its place."""
    replace_bytes(file, table_of([3, 9, 7, 4, 5]))


@pytest.mark.parametrize("write", KINDS)
def test_the_second_attempt_over_shards_that_nobody_changed_hashes_nothing(
    write: Callable[[Path], TokenIndex], tmp_path: Path
) -> None:
    run = run_over(tmp_path, write)
    read = []
    for _ in range(3):
        store = Counting(run.place)
        hashed(run.attempt(store)).confirm()
        read.append(sum(store.num_bytes.values()))
    assert read == [sum(file.stat().st_size for file in run.place.iterdir()), 0, 0]
    assert len([*run.own.list(LEDGER)]) == 1


@pytest.mark.parametrize("write", KINDS)
def test_a_shard_that_was_only_touched_is_the_only_one_that_is_hashed_again(
    write: Callable[[Path], TokenIndex], tmp_path: Path
) -> None:
    run = run_over(tmp_path, write)
    hashed(run.attempt()).confirm()
    touched = min(run.place.iterdir())
    let_the_clock_tick(run.place, "*")
    touched.touch()
    store = Counting(run.place)
    hashed(run.attempt(store)).confirm()
    assert store.num_bytes == {touched.name: touched.stat().st_size}
    store = Counting(run.place)
    hashed(run.attempt(store)).confirm()
    assert store.num_bytes == {}


@pytest.mark.parametrize("damage", [flip, exchange])
def test_a_parquet_file_with_other_bytes_under_the_same_footer_ends_the_next_attempt_with_both_digests(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    run = run_over(tmp_path, write_tables)
    hashed(run.attempt()).confirm()
    file = run.place / "0.parquet"
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    damage(file)
    assert describe(LocalStore(run.place), "0.parquet") == run.index.shards[0]
    shards = hashed(run.attempt())
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    problem = (
        f"data: {file}: its bytes are not those that this run began with: their SHA-256 is {found}, expected "
        f"{expected}; bring the right file back, or begin anew with --fresh"
    )
    for ask in (shards.confirm, lambda: run.ids(shards)):
        with pytest.raises(DataError) as refused:
            ask()
        assert str(refused.value) == problem


@pytest.mark.parametrize("damage", [flip, exchange])
def test_a_parquet_file_that_is_replaced_while_a_run_goes_on_is_not_decoded(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    run = run_over(tmp_path, write_tables)
    shards = hashed(run.attempt())
    damage(run.place / "0.parquet")
    with pytest.raises(DataError, match=r"0\.parquet: its bytes are not those that this run began with"):
        run.ids(shards)


def test_a_parquet_file_that_is_replaced_before_it_was_hashed_is_not_decoded(tmp_path: Path) -> None:
    run = run_over(tmp_path, write_tables)
    shards = run.attempt()
    exchange(run.place / "0.parquet")
    with pytest.raises(DataError, match=r"0\.parquet: was changed since this run started"):
        run.ids(shards)
    with pytest.raises(DataError, match=r"0\.parquet: was changed since this run started"):
        hashed(shards).confirm()


def test_a_parquet_file_that_was_brought_back_is_trained_on(tmp_path: Path) -> None:
    run = run_over(tmp_path, write_tables)
    assert run.ids(hashed(run.attempt())) == [*ROWS[0], *ROWS[1]]
    whole = (run.place / "0.parquet").read_bytes()
    exchange(run.place / "0.parquet")
    replace_bytes(run.place / "0.parquet", whole)
    assert run.ids(hashed(run.attempt())) == [*ROWS[0], *ROWS[1]]


def exchange_raw(file: Path) -> None:
    replace_bytes(file, struct.pack("<5I", 3, 9, 7, 4, 5))


@pytest.mark.parametrize(
    ("write", "exchange_first"),
    [(write_tables, exchange), (write_shards_without_digests, exchange_raw)],
)
def test_a_copy_that_another_run_made_of_other_bytes_is_not_read(
    write: Callable[[Path], TokenIndex], exchange_first: Callable[[Path], None], tmp_path: Path
) -> None:
    first = run_over(tmp_path, write)
    assert first.ids(hashed(first.attempt())) == [*ROWS[0], *ROWS[1]]
    exchange_first(first.place / first.index.shards[0].name)
    second = Run(first.place, first.index)
    assert second.ids(hashed(second.attempt())) == [3, 9, 7, 4, 5, *ROWS[1]]


@pytest.mark.parametrize("write", KINDS)
def test_a_copy_is_made_once_by_all_ranks_and_attempts(
    write: Callable[[Path], TokenIndex], tmp_path: Path
) -> None:
    run = run_over(tmp_path, write)
    assert run.ids(hashed(run.attempt())) == [*ROWS[0], *ROWS[1]]
    store = Counting(run.place)
    assert run.ids(hashed(run.attempt(store))) == [*ROWS[0], *ROWS[1]]
    assert store.num_bytes == {}


def test_a_parquet_file_that_is_gone_is_named(tmp_path: Path) -> None:
    run = run_over(tmp_path, write_tables)
    shards = run.attempt()
    (run.place / "0.parquet").unlink()
    with pytest.raises(DataError, match=r"0\.parquet is gone; bring it back"):
        run.ids(shards)


def test_hashing_that_was_cut_short_is_kept_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.training.data.shard_check._KEPT_EVERY_S", -1.0)
    run = run_over(tmp_path, write_shards)
    (run.place / "1.bin").write_bytes(bytes(20))
    with pytest.raises(DataError, match=r"1\.bin: its bytes are not those"):
        hashed(run.attempt()).confirm()
    assert [shard.name for shard in read_ledger(run.own, LEDGER, {"0.bin", "1.bin"})] == ["0.bin"]


def test_a_shard_that_was_changed_a_moment_ago_is_hashed_again_but_its_digest_counts(tmp_path: Path) -> None:
    run = run_over(tmp_path, write_tables)
    run.now_s = (run.place / "0.parquet").stat().st_ctime_ns / 1e9
    hashed(run.attempt()).confirm()
    assert all(shard.versions == () for shard in read_ledger(run.own, LEDGER, {"0.parquet", "1.parquet"}))
    store = Counting(run.place)
    hashed(run.attempt(store)).confirm()
    assert store.num_bytes.keys() == {"0.parquet", "1.parquet"}
    flip(run.place / "0.parquet")
    with pytest.raises(DataError, match=r"0\.parquet: its bytes are not those that this run began with"):
        hashed(run.attempt()).confirm()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("8-1000000000000-1000000000000", False),
        ("8-1000000000000-0", False),
        ("8-0-1000000000000", False),
        ("8-990000000000-990000000000", True),
        ('"0123-4"', True),
        ("8-1-2-3", True),
        ("", True),
    ],
)
def test_only_a_file_may_change_under_its_version(version: str, expected: bool) -> None:
    assert is_settled(version, now_s=1001.0) is expected


def test_what_an_index_names_counts_more_than_what_a_ledger_says(tmp_path: Path) -> None:
    run = run_over(tmp_path, write_shards)
    (run.place / "0.bin").write_bytes(bytes(20))
    version = LocalStore(run.place).look("0.bin")[1] or ""
    forged = KnownShard(name="0.bin", sha256=hashlib.sha256(bytes(20)).hexdigest(), versions=(version,))
    LedgerWriter(run.own, LEDGER, term=1, rank=0).write([forged])
    with pytest.raises(DataError, match=r"0\.bin: its bytes are not those that its index names"):
        hashed(run.attempt()).confirm()


def known(name: str = "a.bin", digest: str = "a", *versions: str) -> KnownShard:
    return KnownShard(name=name, sha256=digest * 64, versions=versions)


def test_the_first_digest_of_a_shard_counts_with_all_its_versions() -> None:
    found = merged([known("x", "a", "1"), known("y", "b"), known("x", "c", "2"), known("x", "a", "3", "1")])
    assert found == (known("x", "a", "1", "3"), known("y", "b"))


def test_a_shard_has_a_bounded_number_of_versions_the_newest() -> None:
    (found,) = merged(known("x", "a", str(number)) for number in range(1000))
    assert len(found.versions) == 64
    assert found.versions[-1] == "999"


def test_ranks_and_attempts_write_apart_and_lives_know_nothing_of_each_other() -> None:
    store = MemoryStore()
    for term, rank in ((1, 0), (1, 1), (2, 0)):
        LedgerWriter(store, LEDGER, term=term, rank=rank).write([known(f"{term}{rank}.bin")])
    LedgerWriter(store, ledger_of("r", 3), term=3, rank=0).write([known("other.bin")])
    wanted = {"10.bin", "11.bin", "20.bin", "other.bin"}
    assert [shard.name for shard in read_ledger(store, LEDGER, wanted)] == ["10.bin", "11.bin", "20.bin"]
    assert [shard.name for shard in read_ledger(store, LEDGER, {"11.bin"})] == ["11.bin"]


@pytest.mark.parametrize(
    "planted",
    ["999999999999-{:06}.json", "000000000000-{:06}.json", "000000000001-000000.a{:06}", "{:06}", "x{:06}"],
)
def test_no_number_of_planted_objects_hides_what_the_run_began_with(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those that later attempts wrote: where no index names a digest, the first one counts."""
    monkeypatch.setattr(shard_ledger, "_MOST_OBJECTS", 4)
    store = MemoryStore()
    LedgerWriter(store, LEDGER, term=1, rank=0).write([known("a.parquet", "a")])
    for number in range(9):
        LedgerWriter(store, LEDGER, term=2, rank=number).write([known("a.parquet", "b")])
        store.put(f"{LEDGER}/{planted.format(number)}", b"planted")
    assert read_ledger(store, LEDGER, {"a.parquet"}) == (known("a.parquet", "a"),)


BODY = json.dumps([{"name": "a.bin", "sha256": "a" * 64, "versions": ["1"]}]).encode()


def hostile() -> list[bytes]:
    draw = random.Random(28)
    whole = b"\n" + BODY
    cut = [whole[: draw.randrange(len(whole))] for _ in range(40)]
    flipped = []
    for _ in range(200):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        flipped.append(bytes(data))
    return [
        b"",
        b"\n" + b"[" * 100_000,
        b"\n" + BODY.replace(b"a" * 64, b"../../x"),
        b"\n" + BODY.replace(b'"1"', b'"' + b"1" * 2000 + b'"'),
        b"\n" + BODY.replace(b'["1"]', b"7"),
        b"\n{}",
        b"\nnull",
        *cut,
        *flipped,
    ]


def test_an_object_of_the_ledger_that_is_none_is_left_out_and_stops_nothing() -> None:
    for data in hostile():
        store = MemoryStore()
        store.put(f"{LEDGER}/000000000001-000000.json", data)
        LedgerWriter(store, LEDGER, term=2, rank=0).write([known("b.bin")])
        found = read_ledger(store, LEDGER, {"a.bin", "b.bin"})
        assert known("b.bin") in found
        assert all(len(shard.sha256) == 64 for shard in found)


def test_an_object_of_the_ledger_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_ledger, "_MOST_BYTES", 300_000)
    store = MemoryStore()
    store.put(f"{LEDGER}/000000000001-000000.json", b"\n" + BODY + b" " * 300_000)
    assert read_ledger(store, LEDGER, {"a.bin"}) == ()


def test_with_the_stores_key_only_what_was_signed_in_its_place_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    LedgerWriter(store, LEDGER, term=1, rank=0).write([known("unsigned.bin")])
    for number, name in enumerate(("other.bin", "ours.bin")):
        key = tmp_path / str(number)
        key.write_bytes(base64.b64encode(bytes([number] * 32)))
        key.chmod(0o600)
        monkeypatch.setenv(VARIABLE, str(key))
        LedgerWriter(store, LEDGER, term=2, rank=number).write([known(name)])
    copied = store.get(f"{LEDGER}/000000000002-000001.json")
    store.put(f"{ledger_of('r', 9)}/000000000009-000001.json", copied)
    store.put(f"{LEDGER}/000000000003-000001.json", copied.replace(b"ours.bin", b"evil.bin"))
    wanted = {"unsigned.bin", "other.bin", "ours.bin", "evil.bin"}
    assert [shard.name for shard in read_ledger(store, LEDGER, wanted)] == ["ours.bin"]
    assert read_ledger(store, ledger_of("r", 9), wanted) == ()


def test_a_store_that_is_away_or_stands_still_costs_the_ledger_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Still(MemoryStore):
        gate = Event()

        def put(self, name: str, data: Buffer) -> None:
            assert self.gate.wait(timeout=30)
            raise Unavailable("memory: away")

    monkeypatch.setattr(shard_ledger, "_LONGEST_WRITE_S", 0.01)
    run = run_over(tmp_path, write_tables)
    run.own = Still()
    shards = hashed(run.attempt())
    shards.confirm()
    assert run.ids(shards) == [*ROWS[0], *ROWS[1]]
    Still.gate.set()
    assert read_ledger(run.own, LEDGER, {"0.parquet"}) == ()
