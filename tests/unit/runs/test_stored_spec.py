"""The spec that stands with a run: where, in which bytes, and that it may be missing or broken."""

import pytest

from checkpointing.stores.memory import MemoryStore
from jobs.spec_schema.stored_spec import store_spec, stored_spec


def test_it_stands_beside_the_log_and_reads_as_it_was_stored() -> None:
    store = MemoryStore()
    store_spec(store, "r", {"name": "r", "world_size": {"min": 1, "max": 2}})
    assert store.get("runs/r/spec.json") == (
        b'{\n "name": "r",\n "world_size": {\n  "min": 1,\n  "max": 2\n }\n}'
    )
    assert stored_spec(store, "r") == {"name": "r", "world_size": {"min": 1, "max": 2}}


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b"\xff", b"null"])
def test_what_is_no_spec_is_none(data: bytes | None) -> None:
    store = MemoryStore()
    if data is not None:
        store.put("runs/r/spec.json", data)
    assert stored_spec(store, "r") is None
