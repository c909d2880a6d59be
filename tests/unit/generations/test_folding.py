"""What a log gave up is known without reading the log, and exactly as its records say."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from checkpointing.errors import Corrupt
from checkpointing.generations.garbage import find_garbage
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log import folding
from checkpointing.log.codec import seal, unseal
from checkpointing.log.folding import EVERY, Fold, GivenUpNames, decode_fold, encode_fold, fold_name
from checkpointing.log.history import Pin, Tombstone
from checkpointing.log.log import Log
from checkpointing.log.signing import VARIABLE, Signer, store_key
from checkpointing.log.trust import slot_name
from checkpointing.stores.contract import Buffer, Denied
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from tests.unit.small_generations import RUN, Ranks, cut_of, generation

FOLD = fold_name(RUN)
TWO = Retention(last=2, best=0)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


class CountingStore(MemoryStore):
    """Counts what a server would be asked. ``on_read`` is called before each read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_requests = 0
        self.on_read: Callable[[], None] = lambda: None

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.num_requests += 1
        self.on_read()
        return super().get_range(name, start, into)

    def size(self, name: str) -> int:
        self.num_requests += 1
        return super().size(name)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """In pages of a thousand names, as S3 does."""
        found = sorted(super().list(prefix, after=after))
        self.num_requests += 1 + len(found) // 1000
        return iter(found)


def saved(store: MemoryStore, num_saves: int) -> Repository:
    """A run of one attempt, of which two generations are kept."""
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"), retention=TWO)
    for number in range(1, num_saves + 1):
        ranks.save(10 * number)
    return repository


def requests_of_gc(store: CountingStore) -> int:
    tool = Repository(store, RUN)
    tool.refresh()
    store.num_requests = 0
    assert find_garbage(tool, now=NOW).remainders == ()
    return store.num_requests


def given_up(store: MemoryStore) -> set[str]:
    """By the records themselves."""
    entries = (record.entry for record in Log(store, RUN).records())
    return {name for entry in entries if isinstance(entry, Tombstone) for name in entry.names}


def read(store: MemoryStore) -> set[str]:
    """By a process that begins now."""
    log = Log(store, RUN)
    log.read()
    return names_of(store, log).read()


def names_of(store: MemoryStore, log: Log) -> GivenUpNames:
    return GivenUpNames(store, RUN, log, Signer(RUN, store_key()))


def writer(store: MemoryStore) -> tuple[Log, GivenUpNames]:
    log = Log(store, RUN)
    log.lease("me")
    return log, names_of(store, log)


def give_up(log: Log, names: GivenUpNames, numbers: range) -> None:
    for number in numbers:
        log.append(Tombstone(names=(generation(number).name,)))
        names.leave()


@pytest.mark.parametrize("num_saves", [100, 300])
def test_gc_beside_a_save_asks_for_as_little_however_long_the_log_is(num_saves: int) -> None:
    store = CountingStore()
    repository = saved(store, num_saves)
    going_on = cut_of(10**6, term=1, number=num_saves + 1)
    repository.put_file(going_on.generation, "rank-00000.safetensors", b"half")
    assert len(list(store.list(f"runs/{RUN}/log"))) > 2 * num_saves
    assert requests_of_gc(store) < EVERY + 30


def test_a_save_seldom_pays_for_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(num_saves: int) -> int:
        store = CountingStore()
        repository = Repository(store, RUN)
        ranks = Ranks(repository, repository.take_over("me"), retention=TWO)
        for number in range(num_saves):
            ranks.save(10 * number)
        return store.num_requests

    with_fold = cost(100)
    monkeypatch.setattr(GivenUpNames, "leave", lambda self: None)
    # Each record is read once, and the fold itself once.
    assert with_fold - cost(100) < 3 * 100 + 10


def test_at_each_length_the_fold_and_what_is_behind_it_say_what_the_records_say() -> None:
    dice, store = Random(25), MemoryStore()
    log, names = writer(store)
    for number in range(1, 300):
        entry = Tombstone(names=(generation(number).name, generation(number - 1).name))
        log.append(entry if dice.random() < 0.5 else Pin(name="one"))
        if dice.random() < 0.9:
            names.leave()
        if number % 20 == 0 and number > 100:
            assert read(store) == names.read() == given_up(store)
    assert FOLD in store.list(f"runs/{RUN}")


@pytest.mark.parametrize("most_at_once", [1024, 16])
def test_a_record_that_can_not_be_read_when_the_log_is_folded_counts_once_it_is_back(
    most_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_MOST_AT_ONCE", most_at_once)
    store = MemoryStore()
    log, names = writer(store)
    for number in range(1, 100):
        log.append(Tombstone(names=(generation(number).name,)))
    slots = {number: store.get(slot_name(RUN, number)) for number in (10, 20, log.number)}
    store.put(slot_name(RUN, 10), b"damaged")
    store.delete(slot_name(RUN, 20))
    store.put(slot_name(RUN, log.number), b"damaged")
    assert len(names.read()) == 96
    give_up(log, names, range(100, 101))
    assert decode_fold(store.get(FOLD), RUN).unread == (10, 20, 100)
    assert read(store) == given_up(store)
    for number, data in slots.items():
        store.put(slot_name(RUN, number), data)
    assert len(given_up(store)) == 100
    assert read(store) == names.read() == given_up(store)


def test_a_damaged_record_at_the_end_of_what_is_folded_does_not_spoil_the_fold() -> None:
    store = MemoryStore()
    log, names = writer(store)
    give_up(log, names, range(1, EVERY - 1))
    log.append(Tombstone(names=("last",)))
    store.put(slot_name(RUN, log.number), b"damaged")
    names.leave()
    assert decode_fold(store.get(FOLD), RUN) == Fold(
        number=EVERY - 1, id=log.record(EVERY - 1).id, names=frozenset(given_up(store))
    )


def test_a_fold_that_was_written_since_the_log_was_looked_at_is_read() -> None:
    store = CountingStore()
    log, names = writer(store)
    give_up(log, names, range(1, 101))
    tool = Log(store, RUN)
    tool.read()
    give_up(log, names, range(101, 301))
    store.num_requests = 0
    assert names_of(store, tool).read() >= {generation(number).name for number in range(1, 101)}
    assert store.num_requests < 10


def test_the_fold_of_a_log_that_was_lost_says_nothing_of_the_one_that_follows() -> None:
    store = MemoryStore()
    log, names = writer(store)
    give_up(log, names, range(1, 101))
    fold = store.get(FOLD)
    for name in [*store.list(f"runs/{RUN}")]:
        store.delete(name)
    log, names = writer(store)
    give_up(log, names, range(201, 240))
    store.put(FOLD, fold)
    assert read(store) == given_up(store)  # the log is shorter than the fold
    for number in range(240, 340):
        log.append(Tombstone(names=(generation(number).name,)))
    assert read(store) == given_up(store)  # it is longer, and the record under the fold's number another


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-9], lambda data: data.replace(b"s7", b"s8"), lambda _: b""]
)
def test_a_fold_that_is_damaged_is_ignored(spoil: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    log, names = writer(store)
    give_up(log, names, range(1, 101))
    store.put(FOLD, spoil(store.get(FOLD)))
    assert read(store) == given_up(store)
    assert len(read(store)) == 100


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: path.symlink_to("/etc/passwd"),
        os.mkfifo,
        lambda path: path.write_bytes(encode_fold(Fold(number=10**300), RUN)),
    ],
)
def test_what_somebody_planted_in_the_place_of_the_fold_stops_nothing(
    plant: Callable[[Path], None], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    log = Log(store, RUN)
    for number in range(1, EVERY + 2):
        log.append(Tombstone(names=(generation(number).name,)))
    plant(tmp_path / FOLD)
    names = GivenUpNames(store, RUN, log, Signer(RUN, None))
    assert len(names.read()) == EVERY + 1
    GivenUpNames(store, RUN, log, Signer(RUN, None)).leave()
    assert decode_fold(store.get(FOLD), RUN).number == EVERY + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": "another"}, {"number": -1}, {"number": True}, {"id": 5}, {"names": "s1"}, {"names": ["../x"]},
        {"names": [1]}, {"unread": [64]}, {"unread": [-1]},
        {"number": -1, "unread": []}, {"number": 64.0, "unread": []},
        {"unread": list(range(1001)), "number": 5000}, {"number": 10**12},
    ],
)  # fmt: skip
def test_what_is_no_fold_is_refused(wrong: dict[str, object]) -> None:
    body = unseal(encode_fold(Fold(number=64, id="i", names=frozenset(["a"]), unread=(3,)), RUN))
    decode_fold(seal(body), RUN)
    with pytest.raises(Corrupt, match="no fold of this run"):
        decode_fold(seal(body | wrong), RUN)


def test_with_the_stores_key_nobody_without_it_can_say_that_something_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    store = MemoryStore()
    log, names = writer(store)
    give_up(log, names, range(1, 101))
    made = decode_fold(store.get(FOLD), RUN)
    assert read(store) == given_up(store)
    forged = encode_fold(Fold(number=made.number, id=made.id, names=frozenset(["good"])), RUN)
    right = Signer(RUN, b"k" * 32)
    for data in (
        forged,
        Signer(RUN, b"x" * 32).sign_fold(made.number, forged),
        Signer("another", b"k" * 32).sign_fold(made.number, forged),
        right.sign_fold(made.number + 1, forged),
        right.sign(made.number, forged),
    ):
        store.put(FOLD, data)
        assert read(store) == given_up(store)
    store.put(FOLD, right.sign_fold(made.number, forged))
    assert "good" in read(store)


def test_whoever_has_a_key_also_reads_the_fold_of_a_run_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CountingStore()
    log, names = writer(store)
    give_up(log, names, range(1, 101))
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    log = Log(store, RUN)
    log.read()
    assert not log.is_signed()
    expected, store.num_requests = given_up(store), 0
    assert names_of(store, log).read() == expected
    assert store.num_requests < EVERY


def test_a_log_of_an_older_version_is_folded_in_steps_and_no_save_pays_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "_MOST_AT_ONCE", 100)
    store = CountingStore()
    log, _ = writer(store)
    for number in range(1, 401):
        log.append(Tombstone(names=(generation(number).name,)))
    names, reached, costs = names_of(store, log), [], []
    for _ in range(5):
        store.num_requests = 0
        names.leave()
        costs.append(store.num_requests)
        reached.append(decode_fold(store.get(FOLD), RUN).number)
    assert reached == [100, 200, 300, 400, 400]
    assert max(costs) < 110
    assert read(store) == given_up(store)


def test_a_log_that_lacks_too_many_records_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_MOST_UNREAD", 10)
    store = CountingStore()
    log, names = writer(store)
    give_up(log, names, range(1, 51))
    for number in range(20, 40):
        store.delete(slot_name(RUN, number))
    give_up(log, names, range(51, 101))
    assert FOLD not in store.list(f"runs/{RUN}")
    assert read(store) == names.read() == given_up(store)
    store.create(slot_name(RUN, 50_000), b"junk")
    log.read()
    log.append(Tombstone(names=("behind",)))
    expected = given_up(store)
    for _ in range(2):
        store.num_requests = 0
        assert names.read() == expected
        assert store.num_requests < 200


def test_a_fold_that_the_store_refuses_costs_no_save_and_is_seldom_tried() -> None:
    class Refusing(MemoryStore):
        num_refused = 0

        def put(self, name: str, data: Buffer) -> None:
            if name == FOLD:
                self.num_refused += 1
                raise Denied("no")
            super().put(name, data)

    store = Refusing()
    log, names = writer(store)
    give_up(log, names, range(1, 201))
    assert store.num_refused == 3
    assert names.read() == given_up(store)
    with pytest.raises(Denied):
        store.put(FOLD, b"")


def test_a_save_does_not_wait_for_a_tool_that_reads_the_log() -> None:
    store = CountingStore()
    log, names = writer(store)
    for number in range(1, 101):
        log.append(Tombstone(names=(generation(number).name,)))
    store.on_read = names.leave
    assert len(names.read()) == 100
