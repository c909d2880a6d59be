"""MDS shards that MosaicML Streaming's own writer made are read id by id, or refused in one line."""

import json
import struct
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check.find import find_tokens
from jobs.runs.data_check.stored import index_at
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.formats.mds import ids_of, index_of_mds
from jobs.training.data.shard_cache import ShardCache
from jobs.training.data.shards import Shards
from jobs.training.task.token_index import DataError, TokenIndex

# Made by its make.txt, whose lengths of samples these are.
MADE = Path(__file__).parents[2] / "fixtures" / "mds"
LENGTHS = {
    "int64": [33] * 9,
    "int32": [33] * 9,
    "uint16": [20, 31, 64, 1, 300],
    "arrays": [33, 300, 12, 255, 256],
    "shaped": [33] * 9,
    "untold": [33] * 4,
    "beside": [20, 31, 64, 7],
}


def written(lengths: Sequence[int]) -> list[int]:
    return [(7 * number + 3 * at) % 500 for number, count in enumerate(lengths) for at in range(count)]


def store_of(name: str, **other: bytes) -> MemoryStore:
    store = MemoryStore()
    for path in (MADE / name).iterdir():
        store.put(path.name, other.get(path.name.partition(".")[0], path.read_bytes()))
    return store


def read(store: MemoryStore) -> tuple[TokenIndex, list[int]]:
    index = index_of_mds(store, store.get("index.json"), "here")
    assert index is not None
    return index, [number for shard in index.shards for number in array("I", b"".join(ids_of(store, shard)))]


@pytest.mark.parametrize("name", LENGTHS)
def test_all_ids_of_its_own_writer_are_read_in_their_order(name: str, tmp_path: Path) -> None:
    index, ids = read(store_of(name))
    assert ids == written(LENGTHS[name])
    assert index.num_tokens == len(ids)
    # As ranks read them.
    cache = ShardCache(LocalStore(MADE / name), index, tmp_path, 10**6)
    assert list(memoryview(Shards(cache, index).read(0, len(ids))).cast("I")) == ids


def test_a_folder_of_them_is_data_as_it_is_and_may_not_be_evaluated_on(tmp_path: Path) -> None:
    file, text = tmp_path / "run.yaml", "name: r\nmodel: llama-tiny\nsteps: 2\nseq_len: 16\nmicro_batch: 2\n"
    file.write_text(f"{text}eval: {{samples: 2}}\ndata: {{kind: tokens, path: {MADE}/int64}}\n")
    tokens = find_tokens(RunSpec.load(file, []))
    assert tokens is not None and tokens.cache is not None
    assert tokens.index.num_tokens == 297
    with pytest.raises(SpecError, match=r"gzip/index.json: 'shard.00000.mds.gz' is compressed by 'gz', exp"):
        index_at(str(MADE / "gzip"), "data.path")


def changed(name: str, key: str, value: object, shard: int = 0) -> bytes:
    body: Any = json.loads((MADE / name / "index.json").read_bytes())
    entry = body["shards"][shard]
    *path, last = key.split(".")
    for part in path:
        entry = entry[part]
    entry[last] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("format", "json", "names shards of 'json', expected 'mds'"),
        ("version", 3, "names shards of 'mds', expected 'mds' of version 2"),
        ("raw_data.basename", "../a.mds", "expected letters"),
        ("raw_data.basename", "a.bin", "expected letters"),
        ("raw_data.basename", "shard.00001.mds", "names a shard twice"),
        ("raw_data.basename", "gone.mds", "gone.mds is gone"),
        ("raw_data.bytes", 1007, r"has 1,008 bytes, but by its index 1,007"),
        ("raw_data.bytes", -1, "samples and bytes"),
        ("samples", 4, "has 3 samples, but by its index 4"),
        ("samples", 2**40, "samples and bytes"),
        ("samples", True, "samples and bytes"),
        ("raw_data", None, "is no index of MDS shards"),
        ("compression", 7, "is no index of MDS shards"),
        ("raw_data.hashes", {"sha256": "ab\n\x1b[2J" + "c" * 10**5}, r"has the hash 'sha256:ab\\n\\x1b"),
        ("raw_data.hashes", {"md5": 2**63}, "has the hash 'md5:9223"),
        ("raw_data.hashes", ["md5"], "is no index of MDS shards"),
        ("raw_data.bytes", 2**63, "samples and bytes"),
    ],
)
def test_an_index_that_is_not_as_expected_is_refused(key: str, value: object, says: str) -> None:
    with pytest.raises(DataError, match=says) as told:
        read(store_of("int64", index=changed("int64", key, value)))
    check_sentence(str(told.value))


def check_sentence(told: str) -> None:
    assert told.isprintable() and len(told) < 400


def head_and_ids(offsets: Sequence[int], config: str, data: bytes) -> bytes:
    return struct.pack(f"<{len(offsets) + 1}I", len(offsets) - 1, *offsets) + config.encode() + data


def mds_shard(offsets: Sequence[int], columns: dict[str, str], data: bytes, **widths: int) -> bytes:
    """``offsets`` count from the end of the head."""
    config = json.dumps(
        {
            "column_names": list(columns),
            "column_encodings": list(columns.values()),
            "column_sizes": [widths.get(name) for name in columns],
        }
    )
    begin = 4 * (len(offsets) + 1) + len(config)
    return head_and_ids([begin + offset for offset in offsets], config, data)


def one_shard(offsets: Sequence[int], columns: dict[str, str], data: bytes, **widths: int) -> MemoryStore:
    """An index beside the shard."""
    shard = mds_shard(offsets, columns, data, **widths)
    raw = {"basename": "0.mds", "bytes": len(shard), "hashes": {}}
    entry = {"format": "mds", "version": 2, "compression": None, "samples": len(offsets) - 1}
    store = MemoryStore()
    store.put("0.mds", shard)
    body = {"version": 2, "shards": [{**entry, "raw_data": raw, "zip_data": None}]}
    store.put("index.json", json.dumps(body).encode())
    return store


IDS = {"tokens": "ndarray:uint16:2"}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (one_shard([0, 4, 2, 8], IDS, bytes(8), tokens=4), "its samples have -2 to 6 bytes"),
        (one_shard([0, 2**24 + 4], IDS, bytes(4), tokens=4), "its samples have 16,777,220"),
        (one_shard([0, 40], IDS, bytes(4), tokens=4), "a sample of 40|was cut short"),
        (one_shard([0, 4], IDS, bytes(9), tokens=4), "goes on behind its last sample"),
        (one_shard([-60, 4], IDS, bytes(4), tokens=4), "behind 44 of a head|is no whole MDS shard"),
        (one_shard([0, 4], IDS, bytes(4), tokens=8), "a sample of 4 bytes has columns of 8"),
        (one_shard([0, 8], {"tokens": "bytes"}, struct.pack("<IHH", 9, 1, 1)), "has columns of 9"),
        (one_shard([0, 8], {"tokens": "pkl"}, bytes(8)), "holds 'pkl', expected bytes or an ndarray"),
        (one_shard([0, 8], {"tokens": "ndarray:float32"}, bytes(8)), "expected bytes or an ndarray of whole"),
        (one_shard([0, 8], {"text": "str"}, bytes(8)), "has no column of ids"),
        (
            one_shard([0, 4], {"tokens": "ndarray:int16:2"}, b"\1\0\xff\xff", tokens=4),
            "has an id that is none",
        ),
        (one_shard([0, 4], {"tokens": "ndarray:int16:3"}, bytes(4), tokens=4), "has the shape"),
        (one_shard([0, 7], {"tokens": "ndarray"}, struct.pack("<IBBB", 3, 200, 4, 1)), "is no whole MDS"),
        (one_shard([0, 7], {"tokens": "bytes"}, struct.pack("<I3s", 3, b"abc")), "its bytes are no ids"),
        (one_shard([0, 8], {"te\x1b[2J\nxt": "str"}, bytes(8)), r"has no column of ids \(\['te\\x1b"),
        # Each of these would take minutes.
        (
            one_shard([0, 4], {"tokens": f"ndarray:uint8:{'9' * 4000}{',9999999999' * 50}"}, b"", tokens=4),
            "have the shape '999",
        ),
        (one_shard([0, 4], {"tokens": "ndarray:uint8:-2,-2"}, bytes(4), tokens=4), "have the shape '-2,-2'"),
        (one_shard([0, *range(2**20 + 1)], IDS, b"", tokens=4), "tells of 1,048,577 samples, expected 1 to"),
        (one_shard([0, 4], IDS | {f"{one}": "int" for one in range(1000)}, bytes(4)), "it has 1,001 columns"),
        (one_shard([0, 4], IDS, bytes(4), tokens=2**63), "its columns have"),
        (one_shard([0, 4], IDS, bytes(4), tokens=-4), "its columns have"),
        # Decoded, this is four times as much.
        (
            one_shard([0, n := 2**22 + 1], {"tokens": f"ndarray:uint8:{n}"}, bytes(n), tokens=n),
            "ids of uint8, or more than 4,194,304",
        ),
    ],
)
def test_a_shard_that_is_not_as_expected_is_refused(store: MemoryStore, says: str) -> None:
    with pytest.raises(DataError, match=says) as told:
        read(store)
    check_sentence(str(told.value))


def test_what_bytes_are_is_seen_in_the_first_sample_and_must_hold_for_all() -> None:
    sample = struct.pack("<I2q", 16, 7, 499)
    other = struct.pack("<I4i", 16, 7, 499, 7, 499)
    with pytest.raises(DataError, match="its first sample is of int64, and others are not"):
        read(one_shard([0, 20, 40], {"tokens": "bytes"}, sample + other))
    assert read(one_shard([0, 20, 40], {"tokens": "bytes"}, sample * 2))[1] == [7, 499] * 2


def test_no_end_of_a_sample_is_left_out() -> None:
    samples = struct.pack("<I2qI3i", 16, 7, 499, 12, 5, 0, 9)
    with pytest.raises(DataError, match="12 bytes are no ids of int64"):
        read(one_shard([0, 20, 36], {"tokens": "bytes"}, samples))


def test_samples_of_equal_bytes_may_have_different_numbers_of_ids() -> None:
    samples = struct.pack("<2I2q", 16, 0, 7, 499) + struct.pack("<2Iq8s", 8, 8, 5, b"8 bytes.")
    index, ids = read(one_shard([0, 24, 48], {"tokens": "bytes", "text": "str"}, samples))
    assert (index.num_tokens, ids) == (3, [7, 499, 5])


def test_a_head_of_many_samples_takes_little_more_memory_than_its_bytes() -> None:
    count, columns = 2**17, {"tokens": "ndarray:uint8:400"}
    # Only the first sample is there, and is read.
    store = one_shard([at * 400 for at in range(count + 1)], columns, bytes(400), tokens=400)
    tracemalloc.start()
    try:
        index = index_of_mds(store, store.get("index.json"), "here")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert index is not None and index.num_tokens == 400 * count
    assert peak < 4 * 4 * count + 3 * 2**20


@pytest.mark.parametrize("name", LENGTHS)
def test_no_flipped_byte_gives_other_ids_where_a_hash_is_known_and_no_other_error(name: str) -> None:
    store = store_of(name)
    index, ids = read(store)
    for shard in index.shards:
        good = store.get(shard.name)
        for at in range(0, len(good), 3):
            store.put(shard.name, good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
            try:
                found = array("I", b"".join(ids_of(store, shard)))
            except DataError:
                continue
            # Without a hash in the index it is the check of shards that compares a run's bytes.
            assert (shard.sha256 or "").startswith("head:") and len(found) == shard.num_tokens
        store.put(shard.name, good)
    assert read(store)[1] == ids


def test_an_index_of_ours_is_none_of_theirs() -> None:
    ours = b'{"format": "longhaul tokens 1", "dtype": "uint16", "shards": [], "by": "mds"}'
    assert index_of_mds(MemoryStore(), ours, "here") is None
    assert index_of_mds(MemoryStore(), b'["mds"]', "here") is None
