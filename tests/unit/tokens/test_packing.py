"""From files to ids: every document once, in order, however the input is cut; and what is refused."""

import gzip
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from cluster.local_ray import private_ray
from jobs.cli.__main__ import main
from jobs.packing import command, documents, long_texts, shard, work
from jobs.packing.documents import texts_of
from jobs.packing.files_table import told_of_files
from jobs.packing.formats import lines
from jobs.packing.pieces import InputError, InputPiece, InputSource, PackingFailed, cut_into_pieces
from jobs.packing.shard import dtype_for, pack_piece
from jobs.packing.sources import find_sources, left_out
from jobs.packing.tokenizing import ByteTokenizer, TokenizerRecipe, read_recipe
from jobs.training.task.token_index import INDEX, Vocabulary, from_json
from tests.unit.deep_folders import deep_folders

TOKENIZER = ByteTokenizer()
END = [256]


def ids_of(inputs: list[Path], column: str = "text", piece_bytes: int = 2**20) -> list[int]:
    """All shards one behind the other."""
    store, ids = MemoryStore(), bytearray()
    for piece in cut_into_pieces(find_sources(inputs, column), piece_bytes):
        if shard := pack_piece(piece, TOKENIZER, column, store).shard:
            ids += store.get(shard.name)
    return list(struct.unpack(f"<{len(ids) // 2}H", ids))


def as_ids(*documents: str) -> list[int]:
    return [number for text in documents for number in [*text.encode(), *END]]


def write_jsonl(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


# Cutting.

SOURCES = st.lists(
    st.one_of(
        st.builds(lambda size: InputSource(path="t", kind="text", sizes=(size,)), st.integers(0, 40)),
        st.builds(
            lambda sizes: InputSource(path="p", kind="parquet", sizes=tuple(sizes)),
            st.lists(st.integers(0, 40)),
        ),
    ),
    max_size=8,
)


@given(sources=SOURCES, piece_bytes=st.integers(1, 30))
def test_every_byte_and_row_group_is_in_one_piece_in_order(
    sources: list[InputSource], piece_bytes: int
) -> None:
    pieces = cut_into_pieces(sources, piece_bytes)
    spans = [span for piece in pieces for span in piece.spans]
    ends = {"text": lambda source: source.sizes[0], "parquet": lambda source: len(source.sizes)}
    expected = [
        (source.path, at) for source in sources for at in range(ends[source.kind](source)) if source.sizes
    ]
    assert [(span.path, at) for span in spans for at in range(span.start, span.end)] == expected
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert sum(span.is_last for span in spans) == sum(ends[source.kind](source) > 0 for source in sources)


@given(sources=SOURCES, piece_bytes=st.integers(1, 30))
def test_a_piece_is_too_large_only_where_one_row_group_is(
    sources: list[InputSource], piece_bytes: int
) -> None:
    for piece in cut_into_pieces(sources, piece_bytes):
        if len(piece.spans) > 1:
            assert all(span.kind != "text" or span.end - span.start <= piece_bytes for span in piece.spans)
            texts = [span.end - span.start for span in piece.spans if span.kind == "text"]
            assert sum(texts) <= piece_bytes


# What is in the shards.

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\ufeff"), max_size=60)


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), piece_bytes=st.integers(1, 50))
def test_plain_text_gives_the_same_ids_however_it_is_cut(
    texts: list[str], piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text.encode())
    documents = [text for text in texts if text]
    assert ids_of([folder], piece_bytes=piece_bytes) == as_ids(*documents)


@given(texts=st.lists(TEXTS, min_size=1, max_size=6), piece_bytes=st.integers(1, 50))
def test_jsonl_gives_the_same_ids_however_it_is_cut(
    texts: list[str], piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_jsonl(tmp_path_factory.mktemp("lines") / "a.jsonl", *({"text": text} for text in texts))
    assert ids_of([path], piece_bytes=piece_bytes) == as_ids(*filter(None, texts))


def test_parquet_gives_the_same_ids_however_it_is_cut(tmp_path: Path) -> None:
    texts = ["one", "", None, "zwei ü", "three"]
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": range(5), "body": texts})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    for piece_bytes in (1, 10**6):
        found = ids_of([path], column="body", piece_bytes=piece_bytes)
        assert found == as_ids("one", "zwei ü", "three")


def test_inputs_come_in_the_order_in_which_they_are_named_and_folders_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    for name in ("b/z.txt", "b/a/q.txt", "b/.hidden/x.txt", "b/.y.txt", "a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = ids_of([tmp_path / "b", tmp_path / "a.txt"])
    assert found == as_ids("b/a/q.txt", "b/z.txt", "a.txt")


def test_a_long_text_is_one_document(tmp_path: Path) -> None:
    text = "a line of some length\n" * 100_000
    (tmp_path / "long.txt").write_text(text)
    assert ids_of([tmp_path / "long.txt"]) == as_ids(text)


def test_a_shard_is_described_by_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abz")
    (piece,) = cut_into_pieces(find_sources([tmp_path], "text"))
    store = MemoryStore()
    packed = pack_piece(piece, TOKENIZER, "text", store)
    assert packed.shard is not None
    data = store.get(packed.shard.name)
    digest = hashlib.sha256(data).hexdigest()
    assert data == struct.pack("<4H", *b"abz", 256)
    assert packed.shard.name == f"00000-{digest[:12]}.bin"
    assert (packed.shard.num_tokens, packed.shard.largest_id, packed.shard.sha256) == (4, 256, digest)
    assert packed.num_documents == 1


def test_a_piece_without_text_has_no_shard(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"text": ""}, {"text": None})
    (piece,) = cut_into_pieces(find_sources([path], "text"))
    store = MemoryStore()
    packed = pack_piece(piece, TOKENIZER, "text", store)
    assert (packed.shard, packed.num_documents) == (None, 0)


@pytest.mark.parametrize(("size", "dtype"), [(257, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")])
def test_ids_are_as_wide_as_the_vocabulary_needs(size: int, dtype: str) -> None:
    assert dtype_for(Vocabulary(tokenizer="t", digest="d", size=size)) == dtype


# What is refused.


def refusal(path: Path, column: str = "text") -> str:
    with pytest.raises(InputError) as refused:
        ids_of([path], column)
    return str(refused.value)


def test_what_does_not_exist_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    assert "none.txt: does not exist" in refusal(tmp_path / "none.txt")
    assert "holds no files" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl.bz2", "a.tar.gz", "a.parquet.zst", "a.arrow.gz", "a.ZIP"])
def test_files_that_are_compressed_in_another_way_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    assert f"{name}: is compressed ({Path(name).suffix}); unpack it first" in refusal(tmp_path)


@pytest.fixture
def usual_depth() -> Iterator[None]:
    """As in a new process: what ran in this one before may have let calls go deeper."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def test_folders_in_one_another_without_an_end_are_refused(tmp_path: Path, usual_depth: None) -> None:
    with deep_folders(tmp_path / "deep", 1500):
        assert refusal(tmp_path) == f"{tmp_path}: has too many folders in one another; take them away"


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_a_link_that_is_not_followed_is_refused_and_not_left_out(target: str, tmp_path: Path) -> None:
    for path in (tmp_path / "folder" / "b.txt", tmp_path / "input" / "a.txt"):
        path.parent.mkdir()
        path.write_text(path.name)
    (tmp_path / "input" / "c").symlink_to(tmp_path / target)
    assert refusal(tmp_path / "input").startswith(f"{tmp_path}/input/c: is a link, but not to a file")


def test_links_to_files_and_a_folder_that_is_named_by_a_link_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "b.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "link").symlink_to(tmp_path / "input")
    assert ids_of([tmp_path / "link"]) == as_ids("a")


def test_a_files_kind_is_known_in_capitals_too(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "A.JSONL", {"text": "a"})
    pyarrow.parquet.write_table(pyarrow.table({"text": ["b"]}), tmp_path / "B.Parquet")
    assert ids_of([tmp_path]) == as_ids("a", "b")
    (tmp_path / "C.TXT.GZ").write_bytes(gzip.compress(b"c"))
    assert ids_of([tmp_path]) == as_ids("a", "b", "c")


@pytest.mark.parametrize("piece_bytes", [3, 2**20])
def test_bytes_that_are_not_utf_8_are_named_by_their_place(piece_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nlines\nb\xffd\n")
    with pytest.raises(InputError, match=r"a\.txt: byte 12 is not UTF-8"):
        ids_of([tmp_path / "a.txt"], piece_bytes=piece_bytes)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": ', "the line at byte 14 is not JSON"),
        ("[" * 100_000, "the line at byte 14 is not JSON"),
        ("[1]", "the line at byte 14 is not an object; expected one with 'text'"),
        (
            '{"body": "x", "id": 1}',
            "the line at byte 14 has no 'text' (body, id); name another with --column",
        ),
        (json.dumps({"b" * 300: 1}), f"has no 'text' ({'b' * 200}); name another with --column"),
        ('{"text": 3}', "the line at byte 14: 'text' is 3, expected text"),
        ('{"text": "a\\ud83d"}', "the line at byte 14: 'text' has half a character ('\\ud83d')"),
        ('{"\\ud83d": ""}', "the line at byte 14 has no 'text' (\\ud83d)"),
    ],
)
def test_a_broken_line_is_named_by_its_place(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + line)
    found = refusal(tmp_path / "a.jsonl")
    assert says in found
    assert found.encode(), "it travels from the worker as UTF-8"


def test_parquet_without_the_column_or_with_another_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["x"]}), path)
    assert "has no column 'text' (id, body); name one with --column" in refusal(path)
    assert "column 'id' holds int64, expected text" in refusal(path, "id")


def test_parquet_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), path)
    path.write_bytes(path.read_bytes()[:-5])
    assert "a.parquet: is no whole Parquet file" in refusal(path)


def test_parquet_with_a_broken_footer_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), path)
    data = path.read_bytes()
    path.write_bytes(data[:-28] + b"\xff" * 20 + data[-8:])
    (line,) = refusal(path).splitlines()
    assert "a.parquet: is no whole Parquet file (" in line


def test_parquet_whose_columns_have_names_that_are_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [{"inner": "x"}]}), path)
    path.write_bytes(path.read_bytes().replace(b"inner", b"in\xe7er"))
    (line,) = refusal(path).splitlines()
    assert "a.parquet: is no whole Parquet file (" in line


def test_a_row_group_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    ends = pyarrow.py_buffer(struct.pack("<3i", 0, 1, 2))
    texts = pyarrow.StringArray.from_buffers(2, ends, pyarrow.py_buffer(b"a\xff"))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=1)
    assert "a.parquet: row group 1 is not whole, or not UTF-8 ('utf-8' codec can't decode" in refusal(path)


def test_a_row_group_with_a_broken_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["some text"] * 4})
    pyarrow.parquet.write_table(table, path, row_group_size=2, use_dictionary=False)
    page = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    with path.open("r+b") as file:
        file.seek(page)
        file.write(b"\xff" * 20)
    found = refusal(path)
    assert "a.parquet: row group 1 is not whole, or not UTF-8 (" in found
    assert "\n" not in found


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt"])
def test_a_file_that_goes_away_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), path)
    (piece,) = cut_into_pieces(find_sources([path], "text"))
    path.unlink()
    with pytest.raises(FileNotFoundError) as gone:
        pack_piece(piece, TOKENIZER, "text", MemoryStore())
    assert (gone.value.filename, bool(gone.value.strerror)) == (str(path), True)


# Tokenizers.


def test_bytes_need_no_file_and_have_their_own_end() -> None:
    assert read_recipe("bytes", None) == TokenizerRecipe(name="bytes")
    with pytest.raises(InputError, match="bytes have an end of their own"):
        read_recipe("bytes", "</s>")


WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}


def write_tokenizer(path: Path, *special: str) -> Path:
    added = [
        {"id": 3 + number, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for number, token in enumerate(special)
    ]
    body = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    more = {"normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None}
    path.write_text(json.dumps({**body, **more, "decoder": None, "model": WORDS}))
    return path


def test_a_tokenizers_file_is_used_with_the_usual_end_or_the_one_that_is_named(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "tokenizer.json", "<pad>", "</s>")
    found = read_recipe(str(file), None).open()
    assert list(found.ids("a b c")) == [0, 1, 2]
    assert 4 not in found.ids("a </s> b")
    assert (found.num_special("a </s> b </s><pad>"), found.num_special("a b")) == (3, 0)
    assert list(read_recipe(str(file), None, reads_special=True).open().ids("a </s> b")) == [0, 4, 1]
    assert found.end_id == found.vocabulary.end_id == 4
    assert found.vocabulary.size == 5
    assert found.vocabulary.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert read_recipe(str(file), "<pad>").open().end_id == 3


def test_documents_that_are_encoded_together_have_the_ids_that_each_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some fill a batch, one is longer than any, and some hold nothing that the tokenizer knows."""
    monkeypatch.setattr(shard, "_TOGETHER_CHARACTERS", 50)
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 200)
    tokenizer = read_recipe(str(write_tokenizer(tmp_path / "tokenizer.json", "</s>")), None).open()
    texts = ["a b" * (number % 9) + " c" * number + "?" for number in range(60)] + ["?", "b " * 400, "c"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    store = MemoryStore()
    [piece] = cut_into_pieces(find_sources([tmp_path / "a.jsonl"], "text"))
    packed = pack_piece(piece, tokenizer, "text", store)
    assert packed.shard and packed.num_documents == len(texts)
    expected = [number for text in texts for number in (*tokenizer.ids(text), tokenizer.end_id)]
    assert list(memoryview(store.get(packed.shard.name)).cast("H")) == expected


@pytest.mark.parametrize(("before", "begin"), [("<s>", [3]), ("</s>", []), (None, [])])
def test_each_document_begins_as_its_tokenizer_has_it(
    before: str | None, begin: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes in parts, once. An end before a text would be a document of its own."""
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 200)
    file = write_tokenizer(tmp_path / "tokenizer.json", "<s>", "</s>")
    library = tokenizers.Tokenizer.from_file(str(file))
    if before:
        ids = [("<s>", 3), ("</s>", 4)]
        library.post_processor = tokenizers.processors.TemplateProcessing(f"{before} $A </s>", None, ids)
        library.save(str(file))
    tokenizer = read_recipe(str(file), None).open()
    assert list(tokenizer.ids("a")) == [0]
    texts = ["a b", "b " * 400, "a"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    store = MemoryStore()
    [piece] = cut_into_pieces(find_sources([tmp_path / "a.jsonl"], "text"))
    packed = pack_piece(piece, tokenizer, "text", store)
    assert packed.shard
    ids_there = list(memoryview(store.get(packed.shard.name)).cast("H"))
    assert ids_there == [number for text in texts for number in (*begin, *tokenizer.ids(text), 4)]
    if begin:
        assert ids_there == [number for text in texts for number in library.encode(text).ids]


@pytest.mark.parametrize("is_chat", [False, True])
def test_the_index_says_what_stands_before_each_document_of_text(
    is_chat: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_tokenizer(tmp_path / "tokenizer.json", "<s>", "</s>")
    library = tokenizers.Tokenizer.from_file(str(file))
    library.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", 3)])
    library.save(str(file))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages} if is_chat else {"text": "a"}))
    options = ["--chat", "--chat-template", "chatml", "--seq-len", "64"] if is_chat else []
    words = [str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--tokenizer", str(file)]
    assert main(["pack", *words, *options]) == 0
    [vocabulary] = [from_json((tmp_path / "out" / INDEX).read_bytes(), "here").vocabulary]
    assert vocabulary and vocabulary.begin_ids == (None if is_chat else (3,))
    capsys.readouterr()
    assert main(["data", str(tmp_path / "out")]) == 0
    assert ("\nbefore each document: the id 3\n" in capsys.readouterr().out) is not is_chat


@pytest.mark.parametrize("begin_id", [5, 2**16])
def test_a_tokenizer_that_begins_a_text_with_an_id_beyond_its_own_is_refused(
    begin_id: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_tokenizer(tmp_path / "tokenizer.json", "<s>", "</s>")
    library = tokenizers.Tokenizer.from_file(str(file))
    library.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", begin_id)])
    library.save(str(file))
    (tmp_path / "a.txt").write_text("a")
    words = [str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--tokenizer", str(file)]
    assert main(["pack", *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"puts the id {begin_id:,} before a text, but has only 5; fetch it again" in told


@pytest.mark.parametrize("piece_bytes", [4, 8, 1000])
def test_a_document_of_several_parts_and_pieces_has_one_beginning(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 4)
    tokenizer = read_recipe(str(write_tokenizer(tmp_path / "tokenizer.json", "<s>", "</s>")), None).open()
    monkeypatch.setattr(tokenizer, "begin_ids", [3])
    (tmp_path / "1.txt").write_text("a")
    (tmp_path / "2.txt").write_text("b c\nb c\nb c\nc")
    store, ids = MemoryStore(), list[int]()
    sources = find_sources([tmp_path / "1.txt", tmp_path / "2.txt"], "text")
    for piece in cut_into_pieces(sources, piece_bytes):
        if found := pack_piece(piece, tokenizer, "text", store).shard:
            ids += memoryview(store.get(found.name)).cast("H")
    assert ids == [3, 0, 4, 3, 1, 2, 1, 2, 1, 2, 2, 4]


@pytest.mark.parametrize("words", ["cba", "abc", "bcb"])
def test_the_largest_id_is_known_wherever_it_stands(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "_TOGETHER_CHARACTERS", 1)
    tokenizer = read_recipe(str(write_tokenizer(tmp_path / "tokenizer.json")), "a").open()
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": word}) + "\n" for word in words))
    [piece] = cut_into_pieces(find_sources([tmp_path / "a.jsonl"], "text"))
    packed = pack_piece(piece, tokenizer, "text", MemoryStore())
    assert packed.shard and packed.shard.largest_id == 2


def test_a_document_that_comes_in_parts_stands_behind_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PART_BYTES", 4)
    tokenizer = read_recipe(str(write_tokenizer(tmp_path / "tokenizer.json", "</s>")), None).open()
    (tmp_path / "1.txt").write_text("a")
    (tmp_path / "2.txt").write_text("b c\nb c\nc")
    store = MemoryStore()
    [piece] = cut_into_pieces(find_sources([tmp_path / "1.txt", tmp_path / "2.txt"], "text"))
    packed = pack_piece(piece, tokenizer, "text", store)
    assert packed.shard
    assert list(memoryview(store.get(packed.shard.name)).cast("H")) == [0, 3, 1, 2, 1, 2, 2, 3]


@pytest.mark.parametrize(
    "stored",
    [
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
        {
            "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
            | {"pad_id": 2, "pad_type_id": 0, "pad_token": "<unk>"}
        },
    ],
)
def test_a_text_is_neither_cut_nor_padded_whatever_the_tokenizers_file_says_of_that(
    stored: dict[str, object], tmp_path: Path
) -> None:
    file = write_tokenizer(tmp_path / "tokenizer.json", "</s>")
    file.write_text(json.dumps(json.loads(file.read_text()) | stored))
    assert list(read_recipe(str(file), None).open().ids("a b a b")) == [0, 1, 0, 1]


def test_a_folder_with_a_tokenizer_is_that_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    file = write_tokenizer(tmp_path / "model" / "tokenizer.json", "</s>")
    (tmp_path / "a.txt").write_text("a b c")
    for number, name in enumerate((file, file.parent)):
        out = tmp_path / f"out-{number}"
        assert main(["pack", str(tmp_path / "a.txt"), "--tokenizer", str(name), "--out", str(out)]) == 0
    assert (tmp_path / "out-0" / INDEX).read_bytes() == (tmp_path / "out-1" / INDEX).read_bytes()
    capsys.readouterr()
    empty = ["--tokenizer", str(tmp_path), "--out", str(tmp_path / "out-2")]
    assert main(["pack", str(tmp_path / "a.txt"), *empty]) == 2
    assert f"--tokenizer {tmp_path}/tokenizer.json: can't be read" in capsys.readouterr().err


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: can't be read"):
        read_recipe(str(tmp_path / "none.json"), None)
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match=r"broken\.json: is no tokenizer\.json"):
        read_recipe(str(tmp_path / "broken.json"), None)


def test_a_tokenizer_without_an_end_needs_one_named(tmp_path: Path) -> None:
    file = str(write_tokenizer(tmp_path / "t.json"))
    with pytest.raises(InputError, match=r"t\.json: has none of the usual tokens that end a document"):
        read_recipe(file, None)
    with pytest.raises(InputError, match=r"--end-token <x>: t\.json has no such token"):
        read_recipe(file, "<x>")


def test_what_the_tokenizers_library_breaks_off_at_is_the_files_fault(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "t.json", "</s>")
    body = json.loads(file.read_text())
    file.write_text(json.dumps(body | {"model": {**WORDS, "unk_token": "<none>"}}))
    for read in (lambda one: one.ids("c"), lambda one: one.ids_of_each(["c"])):
        with pytest.raises(InputError, match=r"t\.json: can't take a text \(WordLevel error: Missing "):
            read(read_recipe(str(file), None).open())
    characters = {"type": "Precompiled", "precompiled_charsmap": "AAAA////AAAAAAAAAAAAAA=="}
    file.write_text(json.dumps(body | {"normalizer": characters}))
    with pytest.raises(InputError, match=r"t\.json: is no tokenizer\.json \(Precompiled: "):
        read_recipe(str(file), None)


def test_a_tokenizer_without_any_token_is_refused(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "t.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model": {**WORDS, "vocab": {}}}))
    with pytest.raises(InputError, match=r"t\.json: has none of the usual tokens that end a document"):
        read_recipe(str(file), None)


@pytest.mark.parametrize(
    ("name", "content", "flags", "says"),
    [
        ("empty.txt", b"", (), "empty.txt: holds no text; there is nothing to pack"),
        (
            "a.md",
            b"a",
            (),
            "a.md: expected .txt, .text, .jsonl, .ndjson, .json, .csv, .parquet, .arrow, .feather; ",
        ),
        ("a.json", b"{}", (), "a.json: expected an array of objects, or an object with 'text' in each line"),
        ("a.txt", b"text", ("--tokenizer", "none.json"), "none.json: can't be read"),
        ("a.txt", b"text", ("--out", "old"), "old: holds packed tokens already; name another place"),
        ("a.txt", b"text", ("--out", "ftp://x/y"), "ftp:// is no kind of store"),
    ],
)
def test_what_can_not_be_packed_ends_with_2_before_anything_is_started(
    name: str,
    content: bytes,
    flags: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    LocalStore(tmp_path / "old").put(INDEX, b"{}")
    os.truncate(tmp_path / "old" / INDEX, 1 << 40)  # no memory holds it
    assert main(["pack", name, "--out", "new", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("longhaul pack: ")
    assert says in line
    assert list(LocalStore(tmp_path).list("new")) == []


@pytest.fixture
def _without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with ``a.txt``, where a Ray that is to start says so in one line."""

    def refuse(**_: object) -> None:
        raise PackingFailed("a Ray was to start")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(private_ray, "ray_for_driver", refuse)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")


@pytest.mark.usefixtures("_without_ray")
def test_input_of_one_piece_is_packed_without_a_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", "a.txt", "--out", "new"]) == 0
    assert "1 document, 9 tokens of bytes (vocabulary 257) in 1 shard:" in capsys.readouterr().out
    assert len(list(LocalStore(tmp_path).list("new"))) == 2
    index = from_json((tmp_path / "new" / INDEX).read_bytes(), "new")
    assert index.vocabulary == replace(ByteTokenizer.vocabulary, begin_ids=())
    assert index.vocabulary.end_id == ByteTokenizer.end_id


@pytest.mark.usefixtures("_without_ray")
@pytest.mark.parametrize("is_large", [True, False])
def test_input_of_several_pieces_or_for_a_cluster_is_packed_with_ray(
    is_large: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_large:
        monkeypatch.setattr(command, "cut_into_pieces", partial(cut_into_pieces, piece_bytes=4))
    else:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["pack", "a.txt", "--out", "new"]) == 1
    assert capsys.readouterr().err == "longhaul pack: a Ray was to start\n"


@pytest.mark.usefixtures("_without_ray")
def test_what_nobody_thought_of_ends_packing_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of a library\nat length")

    monkeypatch.setattr(work, "pack_piece", fail)
    assert main(["pack", "a.txt", "--out", "new"]) == 1
    assert capsys.readouterr().err == "longhaul pack: packing failed: RuntimeError: of a library\n"


def test_texts_end_where_their_file_does(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    pieces = cut_into_pieces(find_sources([tmp_path], "text"), piece_bytes=4)
    ends = [[text.is_end for text in texts_of(piece.spans[0], "text")] for piece in pieces]
    assert [type(piece) for piece in pieces] == [InputPiece, InputPiece]
    assert ends == [[False], [True]]


def test_files_of_unknown_kinds_in_folders_are_left_out_and_told_unless_somebody_says_what_they_are(
    tmp_path: Path,
) -> None:
    for name in ("a.txt", "README.md", "index.json", "00000-0123456789ab.bin", "data.mds", "b.tsv"):
        (tmp_path / name).write_text(name)
    write_jsonl(tmp_path / "c.jsonl", {"text": "c"})
    assert ids_of([tmp_path]) == as_ids("a.txt", "c")
    ignored = left_out([tmp_path], "text", None)
    assert [path.name for path in ignored] == sorted(
        ("README.md", "index.json", "00000-0123456789ab.bin", "data.mds", "b.tsv")
    )
    assert told_of_files(find_sources([tmp_path], "text"), ignored).splitlines() == [
        "files   taken as         number  bytes",
        ".jsonl  jsonl                 1     13",
        ".txt    text                  1      5",
        ".bin    left out (--as)       1",
        ".json   left out (--as)       1",
        ".md     left out (--as)       1",
        ".mds    left out (--as)       1",
        ".tsv    left out (--as)       1",
    ]
    (tmp_path / "data.mds").unlink()
    assert len(find_sources([tmp_path], "text", rest="text")) == 6
    assert left_out([tmp_path], "text", "text") == []
    assert [one.kind for one in find_sources([tmp_path / "b.tsv"], "text", rest="text")] == ["text"]


def test_a_file_that_is_there_twice_is_refused_also_by_a_link(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")
    with pytest.raises(InputError, match=r"a\.txt: is the same file as .*a\.txt; name it once, or take"):
        find_sources([tmp_path, file], "text")
    (tmp_path / "b.txt").symlink_to(file)
    with pytest.raises(InputError, match=r"b\.txt: is the same file as .*a\.txt; name it once, or take"):
        find_sources([tmp_path], "text")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo \xef\xbb\xbf")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "three"}\n')
    assert ids_of([tmp_path]) == as_ids("one\ntwo \ufeff", "three")


@given(
    parts=st.lists(st.sampled_from(["a", "ü", "€", "😀", "\n", "word "]), max_size=60),
    part_bytes=st.integers(4, 12),
    piece_bytes=st.integers(1, 40),
)
def test_lines_of_any_length_are_read_in_parts_that_cut_no_character(
    parts: list[str], part_bytes: int, piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, text = tmp_path_factory.mktemp("lines") / "a.txt", "".join(parts)
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PART_BYTES", part_bytes)
        patch.setattr(lines, "PART_BYTES", part_bytes)
        pieces = cut_into_pieces(find_sources([path], "text"), piece_bytes)
        read = [one.text for piece in pieces for one in texts_of(piece.spans[0], "text")]
    assert "".join(read) == text
    assert all(len(one.encode()) <= 2 * part_bytes for one in read)


def test_a_line_of_json_beyond_the_bound_is_named_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1000)
    write_jsonl(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b" * 1000})
    assert "a.jsonl: the line at byte 14 has more than 1,000 bytes; split or remove it" in refusal(tmp_path)


def test_packing_deletes_nothing_that_lies_where_it_writes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    theirs = {"notes.txt": b"theirs", "00000-0123456789ab.bin": b"of another packing", ".tmp-mine": b"theirs"}
    for name, data in theirs.items():
        (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_bytes(data)
    (piece,) = cut_into_pieces(find_sources([tmp_path / "a.txt"], "text"))
    packed = pack_piece(piece, TOKENIZER, "text", LocalStore(tmp_path / "out"))
    assert packed.shard is not None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*theirs, packed.shard.name}
    assert {name: (tmp_path / "out" / name).read_bytes() for name in theirs} == theirs
