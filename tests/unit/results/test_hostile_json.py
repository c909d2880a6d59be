"""What any writer of a store can leave there as JSON: whoever reads it names it or passes it over."""

import json

import pytest

from checkpointing.stores.bounded import excess_of
from checkpointing.stores.contract import Store
from checkpointing.stores.memory import MemoryStore
from jobs.recovery.journal import read_note
from jobs.run_progress.status_file import read_status_file
from jobs.spec_schema.stored_spec import stored_spec
from jobs.training.task.token_index import DataError, from_json
from reporting.results.device_rates import read_machines
from reporting.results.records import RecordError, parsed, read_record
from reporting.results.result_rows import row_of

DEEP = b"[" * 100_000
HOSTILE = [DEEP, b'{"a":' * 100_000, b"9" * 10_000, b"1e999", b"null", b'"\\ud800"', b"\xff", b""]


class Everything(MemoryStore):
    """Whatever is asked for has the same content."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = content

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        found = self._content[start : start + len(into)]
        into[: len(found)] = found
        return len(found)

    def size(self, name: str) -> int:
        return len(self._content)


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_a_run_is_read_as_if_it_were_not_there(content: bytes) -> None:
    store: Store = Everything(content)
    assert read_status_file(store, "r") == {}
    assert stored_spec(store, "r") is None
    assert read_note(store, "r", 1) is None


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_an_index_and_a_machines_rates_are_named(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^here: "):
        from_json(content, "here")
    store = MemoryStore()
    store.put("machines/a/b.json", content)
    machines, (skipped,) = read_machines(store)
    assert machines == ()
    assert skipped.name == "machines/a/b.json"


@pytest.mark.parametrize("rate", ["1e999", "9" * 400, "-1", "null", "[]"])
def test_a_rate_that_no_device_has_is_named(rate: str) -> None:
    told = (
        '{"schema_version": 1, "group": "g", "node": "n", "device": null, "measured_at": "", "torch": null, '
        f'"rates": [{{"device": 0, "dtype": "bf16", "shape": [1, 1, 1], "flops_per_s": {rate}}}]}}'
    )
    store = MemoryStore()
    store.put("machines/a/b.json", told.encode())
    assert len(read_machines(store)[1]) == 1


def test_a_whole_number_that_no_column_of_whole_numbers_holds_is_a_float() -> None:
    (found,) = parsed(b"[100000000000000000000000]")
    assert type(found) is float and found == 1e23


def test_json_that_would_take_far_more_memory_than_bytes_is_not_parsed() -> None:
    """Six megabytes take more than 200; the largest file that is read has forty times as many."""
    bomb = b"[" + b"[[]]," * (2**22 // 3 + 1) + b"[]]"
    for read in (read_record, parsed, lambda data: row_of(data, "x")):
        with pytest.raises(RecordError, match=r"^holds 4,194,3[0-9]{2} keys and values"):
            read(bomb)
    with pytest.raises(DataError, match=r"index\.json: is no index of tokens \(it holds 4,194,"):
        from_json(bomb, "index.json")


def test_an_index_has_room_for_a_million_shards_and_not_for_any_values() -> None:
    """In 256 MB, the largest file that is read, one value for each eight bytes takes four gigabytes."""
    dense = b'["' + b"x" * 80_000_000 + b'"' + b",[]" * 5_000_001 + b"]"
    with pytest.raises(DataError, match=r"it holds 10,000,003 keys and values"):
        from_json(dense, "index.json")
    shard = json.dumps({"name": "a", "num_tokens": 1, "sha256": "a" * 64}, indent=1).encode() + b","
    assert excess_of(shard * 1_000_000, most_values=10_000_000) is None
