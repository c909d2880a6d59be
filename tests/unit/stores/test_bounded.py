"""Objects that others wrote are read up to a bound, and never beyond it."""

import os
from pathlib import Path

import pytest

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore

MANY = 300_000  # more than one request reads


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
