"""A watcher reads a store that anybody may have filled: bounded, and without writing."""

import json

import pytest

from checkpointing.stores.contract import StoreError
from checkpointing.stores.memory import MemoryStore
from jobs.watching.bounded_store import BoundedStore
from jobs.watching.runs import RunReading
from tests.unit.recorded import attempt, leave, step_row
from tests.unit.watching.watched import put_run


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.num_bytes = 0

    def get(self, name: str) -> bytes:
        self.read.append(name)
        return super().get(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        count = super().get_range(name, start, into)
        self.num_bytes += count
        return count

    def size(self, name: str) -> int:
        return len(super().get(name))


def test_nothing_is_written() -> None:
    store = BoundedStore(MemoryStore())
    for write in (
        lambda: store.put("a", b""),
        lambda: store.create("a", b""),
        lambda: store.delete("a"),
        store.probe,
    ):
        with pytest.raises(StoreError, match="writes nothing"):
            write()


def test_an_object_that_is_too_large_is_refused_before_all_of_it_is_read() -> None:
    store = CountingStore()
    store.put("runs/r/status.json", b"x" * 4_000_001)
    with pytest.raises(StoreError, match=r"has 4,000,001 bytes, at most 4,000,000 are read"):
        BoundedStore(store).get("runs/r/status.json")
    assert store.num_bytes < 300_000


def test_a_listing_that_never_ends_is_refused() -> None:
    store = MemoryStore()
    for number in range(11):
        store.put(f"runs/r/gen/{number}", b"")
    with pytest.raises(StoreError, match="more than 10 objects"):
        list(BoundedStore(store, most_names=10).list("runs"))


def test_of_ten_thousand_ranks_only_the_first_ones_parts_are_read() -> None:
    store = CountingStore()
    of = attempt(world_size=10_000)
    part = store_part(store, of)
    for rank in range(1, 10_000):
        store.put(part.replace("-00000-", f"-{rank:05d}-"), b"no part at all")
    store.read.clear()
    found = RunReading(store, "r").records().run
    assert found is not None and found.num_steps == 1
    assert set(store.read) == {part, "runs/r/data.json"}


def store_part(store: CountingStore, of: object) -> str:
    return str(leave(store, of, "steps", [step_row(1)]))  # type: ignore[arg-type]  # an attempt


def test_a_part_is_read_once_however_often_one_looks() -> None:
    store = CountingStore()
    put_run(store)
    reading = RunReading(store, "r")
    first = reading.records()
    num_read = len([name for name in store.read if "/parts/" in name])
    assert num_read == len(list(store.list("runs/r/parts")))
    assert reading.records() is first
    assert len([name for name in store.read if "/parts/" in name]) == num_read


def test_a_status_costs_a_handful_of_reads_however_long_the_log_is() -> None:
    store = CountingStore()
    put_run(store)
    reading = RunReading(store, "r")
    reading.status()
    store.read.clear()
    reading.status()
    assert len(store.read) <= 4
    assert not [name for name in store.read if "/parts/" in name]


@pytest.mark.parametrize(
    "told", [b"[" * 100_000, json.dumps({"stage": ["a"], "step": "x"}).encode(), b"\xff"]
)
def test_a_status_that_somebody_made_up_is_as_if_there_were_none(told: bytes) -> None:
    store = MemoryStore()
    put_run(store)
    store.put("runs/r/status.json", told)
    found = RunReading(store, "r").status()
    assert (found["step"], found["stage"]) == (20, None)
