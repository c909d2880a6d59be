"""The formats that people have, each read from files of the library that it belongs to; and hostile ones."""

import base64
import csv
import gzip
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path, PurePath

import pandas
import polars
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.memory import MemoryStore
from jobs.packing.documents import values_of
from jobs.packing.formats import columns, groups, json_array, lines, unpacked
from jobs.packing.formats.naming import ending, inner_suffix
from jobs.packing.pieces import InputError, TextSpan, cut_into_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources, left_out, named
from jobs.packing.tokenizing import ByteTokenizer

TEXTS = ["plain", "two\nlines, a comma", 'quotes "inside"', "ü € 😀 \u2028", "'\\n'", "[{]}", " padded "]
TABLE = {"id": list(range(len(TEXTS))), "text": TEXTS}
Writer = Callable[[Path], object]


def documents_of(inputs: list[Path], column: str = "text", piece_bytes: int = 2**20) -> list[str]:
    store, ids = MemoryStore(), bytearray()
    for piece in cut_into_pieces(find_sources(named(inputs), column), piece_bytes):
        if shard := pack_piece(piece, ByteTokenizer(), column, store).shard:
            ids += store.get(shard.name)
    documents, rest = [], bytearray()
    for number in struct.unpack(f"<{len(ids) // 2}H", ids):
        if number == ByteTokenizer.end_id:
            documents.append(rest.decode())
            rest.clear()
        else:
            rest.append(number)
    assert not rest
    return documents


def refusal(path: Path, column: str = "text") -> str:
    with pytest.raises(InputError) as refused:
        documents_of([path], column)
    (line,) = str(refused.value).splitlines()
    assert line.encode()
    return line


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


def _python_csv(path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([TABLE, *zip(*TABLE.values(), strict=True)])


def _arrow(path: Path, new: Callable[..., pyarrow.ipc.RecordBatchFileWriter], **options: object) -> None:
    table = pyarrow.table(TABLE)
    with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=2)


_LZ4 = pyarrow.ipc.IpcWriteOptions(compression="lz4")
_RECORDS = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
WRITERS: dict[str, tuple[str, Writer]] = {
    "json": ("a.json", lambda path: path.write_text(json.dumps(_RECORDS), encoding="utf-8")),
    "json indented": (
        "a.json",
        lambda path: path.write_text(json.dumps(_RECORDS, indent=2, ensure_ascii=False), encoding="utf-8"),
    ),
    "json of pandas": ("a.json", lambda path: pandas.DataFrame(TABLE).to_json(path, orient="records")),
    "json lines of pandas": (
        "a.json",
        lambda path: pandas.DataFrame(TABLE).to_json(path, orient="records", lines=True),
    ),
    "json of polars": ("a.json", lambda path: polars.DataFrame(TABLE).write_json(path)),
    "jsonl of polars": ("a.jsonl", lambda path: polars.DataFrame(TABLE).write_ndjson(path)),
    "gz of pandas": (
        "a.jsonl.gz",
        lambda p: pandas.DataFrame(TABLE).to_json(p, orient="records", lines=True),
    ),
    "csv": ("a.csv", _python_csv),
    "csv of pandas": ("a.csv", lambda path: pandas.DataFrame(TABLE).to_csv(path, index=False)),
    "csv.gz of pandas": ("a.csv.gz", lambda path: pandas.DataFrame(TABLE).to_csv(path)),
    "csv of polars": ("a.csv", lambda path: polars.DataFrame(TABLE).write_csv(path)),
    "arrow file": ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_file)),
    "arrow stream": ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_stream)),
    "arrow lz4": ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_file, options=_LZ4)),
    "arrow stream lz4": ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_stream, options=_LZ4)),
    "feather of pandas": ("a.feather", lambda path: pandas.DataFrame(TABLE).to_feather(path)),
    "arrow of polars": ("a.arrow", lambda path: polars.DataFrame(TABLE).write_ipc(path)),
    "parquet of pandas": ("a.parquet", lambda path: pandas.DataFrame(TABLE).to_parquet(path)),
    "parquet of polars": ("a.parquet", lambda path: polars.DataFrame(TABLE).write_parquet(path)),
}


@pytest.mark.parametrize("what", WRITERS)
@pytest.mark.parametrize("piece_bytes", [1, 2**20])
def test_a_library_s_own_files_are_read_as_it_wrote_them(
    what: str, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_BYTES", 1)
    name, write = WRITERS[what]
    write(tmp_path / name)
    assert documents_of([tmp_path], piece_bytes=piece_bytes) == TEXTS


@pytest.mark.parametrize("wrapping", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "lines.json", "a.csv"])
def test_a_compressed_file_gives_the_bytes_of_the_unpacked_one(
    name: str, wrapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_BYTES", 40)
    frame, data = polars.DataFrame(TABLE), io.BytesIO()
    writers = {"a.csv": frame.write_csv, "a.json": frame.write_json, "a.txt": frame.write_csv}
    writers.get(name, frame.write_ndjson)(data)
    (tmp_path / name).write_bytes(data.getvalue())
    half = len(data.getvalue()) // 2
    # Two members, or frames, one behind the other are one file.
    parts = [COMPRESS[wrapping](part) for part in (data.getvalue()[:half], data.getvalue()[half:])]
    (tmp_path / (name + wrapping)).write_bytes(b"".join(parts))
    for piece_bytes in (50, 2**20):
        plain = documents_of([tmp_path / name], piece_bytes=piece_bytes)
        assert documents_of([tmp_path / (name + wrapping)], piece_bytes=piece_bytes) == plain
    assert [source.sizes for source in find_sources([tmp_path / (name + wrapping)], "text")] == [
        source.sizes for source in find_sources([tmp_path / name], "text")
    ]


JSON_TEXTS = st.lists(
    st.text(max_size=30).map(lambda text: text.encode(errors="ignore").decode()), max_size=8
)


@given(texts=JSON_TEXTS, indent=st.sampled_from([None, 1]), is_ascii=st.booleans(), read=st.integers(1, 20))
def test_an_array_is_read_the_same_however_few_bytes_come_at_once(
    texts: list[str], indent: int | None, is_ascii: bool, read: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    records = [{"text": text, "more": [{"]": "}"}, -1.5e3, None]} for text in texts]
    body = json.dumps(records, indent=indent, ensure_ascii=is_ascii)
    path.write_text("\ufeff" * (len(texts) % 2) + body, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_READ_BYTES", read)
        patch.setattr(groups, "GROUP_BYTES", read)
        assert documents_of([path], piece_bytes=1) == [text for text in texts if text]


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=8), size=st.integers(1, 60)
)
def test_csv_is_read_as_python_s_own_reader_does_however_it_is_cut(
    texts: list[str], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["text", "n"], *([text, 1] for text in texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "GROUP_BYTES", size)
        assert documents_of([path], piece_bytes=size) == [text for text in texts if text]


def test_patterns_stand_for_the_files_that_fit_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/1.txt", "a/2.txt", "a/1.txt", "a/c/3.txt", "a/.hidden.txt", "a/x.md", "[1].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert documents_of([tmp_path / "?" / "*.txt"]) == ["a/1.txt", "a/2.txt", "b/1.txt"]
    assert documents_of([tmp_path / "a" / "**" / "*.txt"]) == ["a/1.txt", "a/2.txt", "a/c/3.txt"]
    assert documents_of([tmp_path / "a" / "c" / "**"]) == ["a/c/3.txt"]
    for link in ("b/here", "b/again"):
        (tmp_path / link).symlink_to(tmp_path / "b")
    assert documents_of([tmp_path / "b" / "**" / "*.txt"]) == ["b/1.txt"], "links lead back for ever"
    assert documents_of([tmp_path / "[1].txt"]) == ["[1].txt"], "a file of that name is no pattern"
    assert "x.md: expected .txt" in refusal(tmp_path / "a" / "x*")
    assert "none*: fits no file" in refusal(tmp_path / "none*")


def test_settings_beside_data_in_a_folder_are_left_out_and_a_single_record_is_not(tmp_path: Path) -> None:
    for name, body in {
        "dataset_info.json": json.dumps({"splits": {}}, indent=2),
        "state.json": json.dumps({"_split": None}),
        "names.json": '["a", "b"]',
        "empty.json": "",
        "one.json": '{"text": "one"}',
        "two.json": '[\n {"text": "two"}\n]\n',
    }.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    assert documents_of([tmp_path]) == ["one", "two"]
    left = [path.name for path in left_out([tmp_path], "text", None)]
    assert left == ["dataset_info.json", "empty.json", "names.json", "state.json"]
    says = "state.json: expected an array of objects, or an object with 'text' in each line"
    assert says in refusal(tmp_path / "state.json")
    (tmp_path / "lines.json").write_text('{"body": "a"}\n{"body": "b"}\n', encoding="utf-8")
    assert "lines.json: the line at byte 0 has no 'text' (body)" in refusal(tmp_path)


@given(name=st.text(st.sampled_from("aZ.-"), min_size=1).filter(lambda name: name.strip(".")))
def test_an_ending_is_what_python_calls_a_suffix(name: str) -> None:
    for path in (name, f"some.where/{name}"):
        assert inner_suffix(path) == ending(path) == PurePath(name).suffix.lower()
        assert inner_suffix(f"{path}.gz") == PurePath(name).suffix.lower()


def test_a_file_is_told_by_both_of_its_endings() -> None:
    names = ("a.jsonl.gz", "a.B.TXT.ZST", "a.v2.txt", "gz", ".gz")
    assert [ending(name) for name in names] == [".jsonl.gz", ".txt.zst", ".txt", "", ""]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('[{"text": "a"}, 3]', "the record at byte 16 is not an object"),
        ('[{"text": "a"}, {"body": 1}]', "the record at byte 16 has no 'text' (body)"),
        ('[{"text": "a"}, {"text": 3}]', "the record at byte 16: 'text' is 3, expected text"),
        ('[{"text": "a"}, {"text": ]', "the record at byte 16 is not JSON (Expecting value"),
        ('[{"text": "a"}, {"text": "b', "the record at byte 16 is not JSON (Unterminated string"),
        ('[{"text": "a"},', "the record at byte 15 is not JSON (Expecting value"),
        ('[{"text": "a"}', "byte 14 is the end of the file, expected ']'"),
        ('[{"text": "a"} {"text": "b"}]', "byte 15 is '{', expected ']'"),
        ('[{"text": "a"}] 1', "byte 16 is '1', behind the end of the array"),
        ('[{"text": "a"}, {"text": "\\ud83d"}]', "the record at byte 16: 'text' has half a character"),
        ('[{"text": ' + "[" * 100_000, "the record at byte 1 is not JSON"),
        ('[{"text": ' + "1" * 10_000 + "}]", "the record at byte 1 is not JSON"),
    ],
)
def test_a_broken_array_is_named_by_its_place(body: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(body, encoding="utf-8")
    assert f"a.json: {says}" in refusal(tmp_path / "a.json")


def test_an_array_that_is_not_utf_8_is_named_by_its_byte(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"text": "\xc3\xbc\xff"}]')
    assert "a.json: byte 13 is not UTF-8" in refusal(tmp_path)
    (tmp_path / "a.json").write_bytes(b'[{"text": "a"}]\xc3')
    assert "a.json: byte 15 is not UTF-8" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("id,body\n1,a\n", "has no column 'text' (id, body); name one with --column"),
        ("text;id\na;1\n", "has no column 'text' (text;id); name one with --column"),
        ("text,text\na,b\n", "has two columns 'text' (text, text); name one with --column"),
        ("text,id\na,1\nb\n", "the row at byte 12 has 1 fields, but the header 2"),
        ('text,id\na,1\n"b" c,2\n', "the row at byte 12 is not CSV (',' expected after '\"')"),
        ('text,id\na,1\n"b,2\n', "the row at byte 12 is not CSV (unexpected end of data)"),
        ("\ntext,id\na,1\n", "has no column 'text' (); name one with --column"),
    ],
)
def test_a_broken_row_of_csv_is_named_by_its_place(body: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(body, encoding="utf-8")
    assert f"a.csv: {says}" in refusal(tmp_path)


def test_bytes_of_csv_that_are_not_utf_8_are_named_and_a_byte_order_mark_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbftext\na\n")
    assert documents_of([tmp_path]) == ["a"]
    (tmp_path / "a.csv").write_bytes(b"text\na\n\xff\n")
    assert "a.csv: byte 7 is not UTF-8" in refusal(tmp_path)


@pytest.mark.parametrize("wrapping", [".gz", ".zst"])
def test_a_compressed_file_that_is_broken_is_named(wrapping: str, tmp_path: Path) -> None:
    whole = COMPRESS[wrapping](b"".join(b"%d words\n" % number for number in range(1000)))
    path = tmp_path / f"a.txt{wrapping}"
    broken = {"cut": whole[:-20], "other": b"no such file", "followed": whole + b"and more"}
    for data in broken.values():
        path.write_bytes(data)
        assert f"a.txt{wrapping}: is no whole {wrapping} file behind unpacked byte " in refusal(path)


def test_a_file_of_the_zstd_program_is_read_and_one_with_a_flipped_bit_is_not(tmp_path: Path) -> None:
    whole = base64.b64decode("KLUv/QRYKQEAeyJ0ZXh0IjogIm1hZGUgYnkgdGhlIHpzdGQgcHJvZ3JhbSJ9CoaTh90=")
    (tmp_path / "a.jsonl.zst").write_bytes(whole)
    assert documents_of([tmp_path]) == ["made by the zstd program"]
    for data, wrapping in ((whole, "zst"), (gzip.compress(b"a" * 10 + b"b"), "gz")):
        (tmp_path / f"a.jsonl.{wrapping}").write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])
        assert f"a.jsonl.{wrapping}: is no whole" in refusal(tmp_path / f"a.jsonl.{wrapping}")


@pytest.mark.parametrize("wrapping", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.csv", "a.jsonl"])
def test_what_unpacks_to_more_than_the_bound_is_refused_and_never_held(
    wrapping: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "MOST_BYTES", 2**22)
    begin = {"a.json": b'[{"text": ""},', "a.csv": b"text\n"}.get(name, b"")
    bomb = COMPRESS[wrapping](begin + (b" " * 999 + b"\n") * 8000)
    path = tmp_path / (name + wrapping)
    path.write_bytes(bomb)
    assert len(bomb) < 2**16
    assert f"{path.name}: holds more than 4,194,304 bytes, unpacked; unpack it first, or split" in refusal(
        path
    )


def test_records_and_rows_beyond_the_bound_are_named_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lines, json_array):
        monkeypatch.setattr(module, "MOST_LINE_BYTES", 1000)
    monkeypatch.setattr(json_array, "_READ_BYTES", 100)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a"}, {"text": "b" * 3000}]), encoding="utf-8")
    assert "the record at byte 16 is not JSON" in refusal(path)
    assert "or has more than 1,000 characters" in refusal(path)
    path = tmp_path / "a.csv"
    monkeypatch.setattr("jobs.packing.formats.csv_rows.MOST_LINE_BYTES", 1000)
    path.write_text('text\na\n"' + "b\n" * 900 + '"\n', encoding="utf-8")
    assert "a.csv: the row at byte 7 has more than 1,000 bytes" in refusal(path)
    path.write_text('text\na\n"' + "b" * 1500 + '"\n', encoding="utf-8")
    assert "a.csv: the line at byte 7 has more than 1,000 bytes" in refusal(path)
    monkeypatch.setattr(columns, "MOST_BATCH_BYTES", 1000)
    path = tmp_path / "a.arrow"
    polars.DataFrame({"text": ["a" * 1001]}).write_ipc(path)
    assert "a.arrow: record batch 0 has 1,0" in refusal(path)


def test_arrow_of_another_column_or_type_and_what_is_no_arrow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    polars.DataFrame({"id": [1], "body": ["x"]}).write_ipc(path)
    assert "a.arrow: has no column 'text' (id, body); name one with --column" in refusal(path)
    assert "a.arrow: column 'id' holds int64, expected text" in refusal(path, "id")
    path.write_bytes(b"ARROW1 and nothing else")
    assert "a.arrow: is no whole Arrow file (" in refusal(path)
    path.write_bytes(b"nothing like it")
    assert "a.arrow: is no whole Arrow file (" in refusal(path)


@pytest.mark.parametrize("new", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_arrow_whose_text_is_broken_is_named_by_its_batch(
    new: Callable[..., pyarrow.ipc.RecordBatchFileWriter], tmp_path: Path
) -> None:
    path = tmp_path / "a.arrow"
    batches = [pyarrow.record_batch({"text": texts}) for texts in (["words"], ["some", "mooore"])]
    with pyarrow.OSFile(str(path), "wb") as file, new(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    whole = path.read_bytes()
    for good, bad in (
        (b"somemooore", b"somem\xffoore"),
        (struct.pack("<3i", 0, 4, 10), struct.pack("<3i", 0, 2**30, 2**30)),
        (struct.pack("<3i", 0, 4, 10), struct.pack("<3i", 0, -8, 10)),
    ):
        assert whole.count(good) == 1
        path.write_bytes(whole.replace(good, bad))
        assert "a.arrow: record batch 1 is not whole, or not UTF-8 (" in refusal(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "a.arrow: " in refusal(path)


def test_arrow_with_a_column_whose_name_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    _arrow(path, pyarrow.ipc.new_stream)
    good, bad = b"id\0", b"i\xff\0"
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, bad))
    assert "a.arrow: its list of columns is not whole, or not UTF-8 (" in refusal(path)


@pytest.mark.parametrize(
    ("name", "write", "module", "reader"),
    [
        ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_stream), pyarrow.ipc, "open_stream"),
        ("a.arrow", lambda path: _arrow(path, pyarrow.ipc.new_file), pyarrow.ipc, "open_file"),
        ("a.parquet", lambda p: pandas.DataFrame(TABLE).to_parquet(p), pyarrow.parquet, "ParquetFile"),
    ],
)
def test_a_file_that_asks_for_more_memory_than_there_is_is_refused_in_one_line(
    name: str,
    write: Callable[[Path], object],
    module: object,
    reader: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A few bytes can say that 2 GB follow. Arrow makes room for them before it reads."""

    def without_room(*_: object, **__: object) -> object:
        raise MemoryError("malloc of size 2097152000 failed")

    write(tmp_path / name)
    monkeypatch.setattr(module, reader, without_room)
    assert f"{name}: is no whole " in refusal(tmp_path / name)


def test_conversations_are_read_from_arrays_and_arrow_with_their_places(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": str(number)}] for number in range(3)]
    (tmp_path / "a.json").write_text(json.dumps([{"messages": chat} for chat in chats]), encoding="utf-8")
    table = pyarrow.table({"messages": chats})
    with pyarrow.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    found = []
    for piece in cut_into_pieces(find_sources([tmp_path], "messages", is_chat=True), piece_bytes=1):
        for place, value in values_of(piece.spans[0], "messages"):
            found.append((str(place).removeprefix(f"{tmp_path}/"), value))
    assert [value for _, value in found] == chats * 2
    assert [place for place, _ in found] == [
        "a.json: the record at byte 1",
        "a.json: the record at byte 51",
        "a.json: the record at byte 101",
        "b.arrow: record batch 0, row 1",
        "b.arrow: record batch 0, row 2",
        "b.arrow: record batch 1, row 1",
    ]
    (tmp_path / "c.csv").write_text("messages\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"c\.csv: expected JSON, JSONL, Parquet or Arrow with conversations"
    ):
        find_sources([tmp_path], "messages", is_chat=True)


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.arrow", "a.txt.gz"])
def test_a_file_of_any_format_that_goes_away_is_named(name: str, tmp_path: Path) -> None:
    path, frame = tmp_path / name, polars.DataFrame(TABLE)
    {"a.json": frame.write_json, "a.csv": frame.write_csv, "a.arrow": frame.write_ipc}.get(
        name, lambda path: path.write_bytes(gzip.compress(b"x"))
    )(path)
    (piece,) = cut_into_pieces(find_sources([path], "text"))
    path.unlink()
    with pytest.raises(FileNotFoundError) as gone:
        pack_piece(piece, ByteTokenizer(), "text", MemoryStore())
    assert (gone.value.filename, bool(gone.value.strerror)) == (str(path), True)


def test_a_text_that_a_small_file_repeats_in_each_row_lies_in_memory_a_few_times(tmp_path: Path) -> None:
    text, path = "x" * 2**21, tmp_path / "a.parquet"
    rows = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 200, pyarrow.int32()), pyarrow.array([text])
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), path, store_schema=False)
    assert path.stat().st_size < 2**20
    span = TextSpan(path=str(path), kind="parquet", start=0, end=1, is_last=True)
    before, most, num_rows = pyarrow.total_allocated_bytes(), 0, 0
    for _, _, value in columns.values_in(span, "text"):
        assert value == text
        most, num_rows = max(most, pyarrow.total_allocated_bytes() - before), num_rows + 1
    assert num_rows == 200
    # All rows take 400 MiB.
    assert most < 2**28


def test_a_path_that_no_file_can_have_is_refused_in_one_line() -> None:
    assert refusal(Path("x" * 5000)).endswith("x...: can't be looked for (File name too long); name another")
