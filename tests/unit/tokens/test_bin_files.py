"""Files of ids that nanoGPT and Megatron wrote are read in place, or refused in one line."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from checkpointing.stores.contract import Missing
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check import stored
from jobs.runs.data_check.find import find_data, find_tokens
from jobs.runs.data_check.stored import index_at
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.formats import bin_files
from jobs.training.data.formats.bin_files import index_of_bin
from jobs.training.task.task import Mixture
from jobs.training.task.token_index import DataError, TokenShard

DOCUMENTS = ([5, 6, 7], [], [9] * 40, [1, 2])


def nano_gpt(ids: Sequence[int]) -> bytes:
    """As nanoGPT's ``prepare.py`` does: ``np.array(ids, dtype=np.uint16).tofile``."""
    return struct.pack(f"<{len(ids)}H", *ids)


def megatron(documents: Sequence[Sequence[int]], code: int) -> tuple[bytes, bytes]:
    """The ``.bin`` and ``.idx`` of documents of a sequence each, as Megatron-Core describes them."""
    kind, width = {4: ("i", 4), 8: ("H", 2)}[code]
    data = b"".join(struct.pack(f"<{len(one)}{kind}", *one) for one in documents)
    number, lengths = len(documents), [len(one) for one in documents]
    pointers = [width * sum(lengths[:at]) for at in range(number)]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, number, number + 1)
    index = struct.pack(f"<{number}i{number}q{number + 1}q", *lengths, *pointers, *range(number + 1))
    return data, head + index


def store_of(**files: bytes) -> MemoryStore:
    store = MemoryStore()
    for name, data in files.items():
        store.put(f"a.{name}", data)
    return store


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "uint32")])
@pytest.mark.parametrize("name", ["a.bin", "a.idx"])
def test_megatron_s_files_are_one_row_of_all_sequences(
    code: int, dtype: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lengths come in several reads.
    monkeypatch.setattr(bin_files, "_READ_BYTES", 12)
    data, idx = megatron(DOCUMENTS, code)
    index = index_of_bin(store_of(bin=data, idx=idx), name)
    assert (index.dtype, index.num_tokens) == (dtype, 45)
    assert [(shard.name, shard.num_tokens, shard.sha256) for shard in index.shards] == [("a.bin", 45, None)]


@pytest.mark.parametrize(("bin_bytes", "most"), [(16, 8), (10**6, 1000)])
def test_an_index_that_tells_of_more_sequences_than_there_can_be_is_not_read(
    bin_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bin_files, "_MOST_SEQUENCES", 1000)
    # As a sparse file has them: nothing but zeros behind the head.
    idx = IDX[:18] + struct.pack("<QQ", 1001, 0) + bytes(12 * 1001)
    with pytest.raises(DataError, match=rf"a.idx: tells of 1,001 sequences, expected at most {most:,}"):
        index_of_bin(store_of(bin=bytes(bin_bytes), idx=idx), "a.bin")


def test_only_its_last_ending_is_taken_from_a_name() -> None:
    store = store_of(bin=DATA, idx=IDX)
    with pytest.raises(Missing, match=r"a\.idx\.bin"):
        index_of_bin(store, "a.idx.bin")
    with pytest.raises(Missing, match=r"a\.bin\.bin"):
        index_of_bin(store, "a.bin.idx")


def test_a_bin_alone_is_nano_gpt_s() -> None:
    index = index_of_bin(store_of(bin=nano_gpt(range(100))), "a.bin")
    assert (index.dtype, index.num_tokens, index.vocabulary) == ("uint16", 100, None)


DATA, IDX = megatron(DOCUMENTS, 8)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"bin": DATA[:-2], "idx": IDX}, r"a.bin: has 88 bytes, but by a.idx 90 \(45 tokens of uint16\)"),
        ({"bin": DATA + bytes(2), "idx": IDX}, "a.bin: has 92 bytes, but by a.idx 90"),
        ({"bin": DATA, "idx": IDX[:-1]}, "a.idx: has 121 bytes, expected 122 for 4 sequences in 5 doc"),
        ({"bin": DATA, "idx": IDX + bytes(4)}, "data with images can't be read"),
        ({"bin": DATA, "idx": b"TNTIDX\x00\x00" + IDX}, "is no index of Megatron's"),
        ({"bin": DATA, "idx": IDX[:20]}, "is no index of Megatron's"),
        ({"bin": DATA, "idx": b""}, "is no index of Megatron's"),
        ({"bin": DATA, "idx": IDX[:9] + b"\x02" + IDX[10:]}, "is version 2 of dtype"),
        ({"bin": DATA, "idx": IDX[:17] + b"\x05" + IDX[18:]}, "is version 1 of int64, expected version 1 of"),
        ({"bin": DATA, "idx": IDX[:18] + b"\xff" * 8 + IDX[26:]}, "expected 221,360,928,884,514,619,4"),
        ({"bin": DATA, "idx": IDX[:34] + b"\xff" * 4 + IDX[38:]}, "has a sequence of -1 tokens"),
        ({"bin": DATA + b"\x00"}, "has 91 bytes, which is no number of uint16"),
        ({"bin": struct.pack("<256i", 20240520, 1, 45, *[0] * 253) + DATA}, "the header of llm.c"),
        ({"bin": struct.pack("<256i", 20240520, 2, 45, *[0] * 253) + DATA}, "the header of llm.c"),
        # That of its Llama 3, whose ids are uint32.
        ({"bin": struct.pack("<256i", 20240801, 7, 45, *[0] * 253) + bytes(180)}, "the header of llm.c"),
    ],
)
def test_what_is_not_whole_or_of_another_kind_is_refused(files: dict[str, bytes], says: str) -> None:
    with pytest.raises(DataError, match=says):
        index_of_bin(store_of(**files), "a.bin")


def test_no_damage_of_an_index_makes_another_length_or_another_error() -> None:
    for at in range(len(IDX)):
        for damaged in (IDX[:at], IDX[:at] + bytes([IDX[at] ^ 0x41]) + IDX[at + 1 :]):
            try:
                index = index_of_bin(store_of(bin=DATA, idx=damaged), "a.bin")
            except DataError:
                continue
            # Where each sequence begins isn't read: all of them are one row.
            assert (index.dtype, index.num_tokens, at >= 50) == ("uint16", 45, True)


INDEX = (
    b'{"format": "longhaul tokens 1", "dtype": "uint16", "num_tokens": 45,'
    b' "shards": [{"name": "0.bin", "num_tokens": 45}]}'
)


def spec_of(place: Path, data: str) -> RunSpec:
    file = place / "run.yaml"
    file.write_text(
        "name: r\nmodel: llama-tiny\nsteps: 4\nseq_len: 4\nmicro_batch: 2\neval: {samples: 3}\n"
        f"data: {{kind: tokens, {data}}}\n"
    )
    return RunSpec.load(file, [])


def test_a_spec_names_the_file_alone_or_as_a_source(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("train.bin", nano_gpt(range(100)))
    LocalStore(tmp_path).put("web.bin", DATA)
    LocalStore(tmp_path).put("web.idx", IDX)
    found = find_tokens(spec_of(tmp_path, f"path: {tmp_path}/train.bin"))
    assert found is not None and Path(found.url.removeprefix("file://")) == tmp_path
    assert found.windows.num_samples == (100 - 3 * 4 - 2) // 4
    sources = ", ".join(f"{{name: {one}, path: {tmp_path}/{one}.bin, weight: 1}}" for one in ("train", "web"))
    mixture = find_data(spec_of(tmp_path, f"sources: [{sources}]"))
    assert isinstance(mixture, Mixture)
    assert [one.tokens.index.num_tokens for one in mixture.sources] == [100, 45]
    ended = find_tokens(spec_of(tmp_path, f"path: {tmp_path}/web.idx, attention: per_document, end_id: 2"))
    assert ended is not None and ended.end_id == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.bin", r"gone.bin.*; expected a .bin, or a .bin and its .idx"),
        ("alone.idx", r"alone.idx.*; expected a .bin, or a .bin and its .idx"),
        ("none.bin", "none.bin: has no tokens"),
        ("of me.bin", "expected letters, digits"),
    ],
)
def test_a_file_that_is_not_there_is_named(name: str, says: str, tmp_path: Path) -> None:
    LocalStore(tmp_path).put("alone.bin", DATA)
    LocalStore(tmp_path).put("none.bin", b"")
    with pytest.raises(SpecError, match=says):
        find_tokens(spec_of(tmp_path, f"path: '{tmp_path}/{name}'"))


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").mkdir()
    with pytest.raises(SpecError, match=r"index\.json is not there"):
        find_tokens(spec_of(tmp_path, f"path: {tmp_path}/tokens.bin"))


@pytest.mark.parametrize("place", ["~/tokens.bin", "file://{home}/tokens.bin", "{home}/tokens.bin"])
def test_a_folder_is_one_however_it_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    LocalStore(tmp_path / "tokens.bin").put("index.json", INDEX)
    _, index = index_at(place.format(home=tmp_path), "data.path")
    assert index.shards == (TokenShard(name="0.bin", num_tokens=45),)


def test_a_prefix_of_a_bucket_is_a_folder_if_anything_lies_below(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {f"s3://b/{name}": MemoryStore() for name in ("", "tokens.bin", "train.bin")}
    places["s3://b/tokens.bin"].put("index.json", INDEX)
    places["s3://b/"].put("train.bin", DATA)
    monkeypatch.setattr(stored, "open_store", lambda url, base: places[url])
    for name, shard in (("tokens.bin", "0.bin"), ("train.bin", "train.bin")):
        _, index = index_at(f"s3://b/{name}", "data.path")
        assert index.shards == (TokenShard(name=shard, num_tokens=45),)
