"""Faults do what their names say: a proof of survival is worth as much as the fault it survived."""

import pytest

from checkpointing.stores.contract import Missing
from checkpointing.stores.memory import MemoryStore
from tests.faults import FaultyStore, PowerCut


def test_a_call_that_is_cut_before_it_lands_did_not_happen() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, cut_at=2)
    store.put("a", b"1")
    with pytest.raises(PowerCut, match="call 2, put b, before"):
        store.put("b", b"2")
    assert [name for name in "ab" if _has(inner, name)] == ["a"]


def test_a_call_that_is_cut_after_it_landed_happened() -> None:
    inner = MemoryStore()
    with pytest.raises(PowerCut, match="call 1, create a, after"):
        FaultyStore(inner, cut_at=1, after=True).create("a", b"1")
    assert inner.get("a") == b"1"


def test_nothing_reaches_a_store_whose_power_failed() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, cut_at=1)
    for _ in range(3):
        with pytest.raises(PowerCut):
            store.put("a", b"1")
    assert not _has(inner, "a")
    assert store.calls == ["put a"]


def test_every_call_is_named_in_its_order_and_passes_through() -> None:
    store = FaultyStore(MemoryStore())
    store.probe()
    store.create("f/a", b"12")
    store.put("f/b", b"3")
    into = bytearray(1)
    assert store.get_range("f/a", 1, memoryview(into)) == 1
    assert (store.get("f/a"), bytes(into)) == (b"12", b"2")
    assert store.size("f/a") == 2
    assert list(store.list("f", after="f/a")) == ["f/b"]
    store.delete("f/a")
    assert store.calls == [
        "probe", "create f/a", "put f/b", "get_range f/a", "get f/a", "size f/a", "list f", "delete f/a",
    ]  # fmt: skip


def _has(store: MemoryStore, name: str) -> bool:
    try:
        store.get(name)
    except Missing:
        return False
    return True
