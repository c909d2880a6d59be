"""Objects that others wrote are read up to a bound, and never beyond it."""

import os
from pathlib import Path

import pytest

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import create_once

MANY = 300_000  # more than one request reads


class Growing(MemoryStore):
    """Somebody replaces the object as soon as its size was asked for. It counts the bytes that are read."""

    def __init__(self, *later: bytes) -> None:
        super().__init__()
        self.later = list(later)
        self.most_read = 0

    def size(self, name: str) -> int:
        found = len(super().get(name))
        if self.later:
            self.put(name, self.later.pop(0))
        return found

    def get(self, name: str) -> bytes:
        found = super().get(name)
        self.most_read = max(self.most_read, len(found))
        return found

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        found = super().get(name)[start : start + len(into)]
        into[: len(found)] = found
        self.most_read = max(self.most_read, len(found))
        return len(found)


@pytest.mark.parametrize("num_bytes", [0, 1, MANY])
def test_what_keeps_to_the_bound_is_read_whole(num_bytes: int) -> None:
    store, data = MemoryStore(), os.urandom(num_bytes)
    store.put("a", data)
    assert get_bounded(store, "a", most_bytes=MANY) == data


def test_what_is_larger_than_the_bound_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"")
    os.truncate(tmp_path / "a", 1 << 40)  # no memory holds it
    with pytest.raises(TooLarge, match="has 1,099,511,627,776 bytes, at most 300,000 are read"):
        get_bounded(store, "a", most_bytes=MANY)


def test_what_is_not_there_is_missing() -> None:
    with pytest.raises(Missing):
        get_bounded(MemoryStore(), "a", most_bytes=MANY)


def test_what_grows_between_the_question_and_the_read_is_not_read_beyond_the_bound() -> None:
    store = Growing(b"x" * 40 * MANY)
    store.put("a", b"x" * (MANY - 1))
    with pytest.raises(TooLarge, match="has grown beyond the 300,000 bytes"):
        get_bounded(store, "a", most_bytes=MANY)
    assert store.most_read == MANY + 1


def test_what_grows_or_shrinks_within_the_bound_is_read_whole() -> None:
    for later in (os.urandom(MANY), b"", os.urandom(MANY - 5)):
        store = Growing(later)
        store.put("a", os.urandom(MANY - 1))
        assert get_bounded(store, "a", most_bytes=MANY) == later


def test_a_bound_below_what_one_request_reads_holds_too() -> None:
    store = Growing()
    store.put("a", b"x" * 11)
    with pytest.raises(TooLarge, match="has 11 bytes, at most 10 are read"):
        get_bounded(store, "a", most_bytes=10)
    assert get_bounded(store, "a", most_bytes=11) == b"x" * 11


def test_what_took_the_name_first_is_not_read_beyond_the_bound() -> None:
    store = Growing()
    store.put("a", b"x" * MANY)
    assert create_once(store, "a", b"ours", most_bytes=10) is None
    assert store.most_read == 11
    store.put("a", b"theirs")
    assert create_once(store, "a", b"ours", most_bytes=10) == b"theirs"
