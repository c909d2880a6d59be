"""Input in stores: what a URL names, the same bytes as from a folder, and objects that others replace."""

import gzip
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores.contract import Missing, Store
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.retrying import RetryingStore
from jobs.cli.__main__ import main
from jobs.packing.documents import texts_of
from jobs.packing.formats import objects
from jobs.packing.inputs import stored_inputs
from jobs.packing.pieces import InputError, InputSource, StoredObject, cut_into_pieces
from jobs.packing.shard import pack_piece
from jobs.packing.sources import find_sources, left_out, named
from jobs.packing.tokenizing import ByteTokenizer

TEXTS = [f"text {number}: ü€😀 {'long ' * number}" for number in range(40)]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A file of each kind, in folders whose order by path is not that of their names."""
    place = tmp_path / "books"
    for folder in ("a", "a-b", "a/deep", ".hidden"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (place / "a/one.jsonl").write_text(lines)
    (place / "a/deep/two.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (place / "a-b/three.json").write_text(json.dumps([{"text": text} for text in TEXTS]))
    (place / "a-b/four.csv").write_text("text\r\n" + "\r\n".join(f'"{text}"' for text in TEXTS))
    (place / "five.txt").write_text("\n".join(TEXTS))
    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, place / "six.parquet", row_group_size=7)
    for name, new in (("seven.arrow", pyarrow.ipc.new_file), ("eight.arrow", pyarrow.ipc.new_stream)):
        with new(place / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)
    (place / "README.md").write_text("no data")
    (place / ".hidden/x.txt").write_text("hidden")
    return place


def packed(inputs: list[Path | str], piece_bytes: int = 1500) -> tuple[list[str], bytes]:
    """The files in order, below the folder of all, and all shards one behind the other."""
    store, sources = MemoryStore(), find_sources(named(inputs), "text")
    pieces = cut_into_pieces(sources, piece_bytes)
    assert not sources or len(pieces) > 1
    shards = [pack_piece(piece, ByteTokenizer(), "text", store).shard for piece in pieces]
    names = [str(source.path).rpartition("/books/")[2] for source in sources]
    return names, b"".join(store.get(shard.name) for shard in shards if shard)


@pytest.mark.parametrize("below", ["", "/a", "/a/one.jsonl", "/six.parquet", "/*.arrow", "/a*", "/*/*.json*"])
def test_a_store_gives_the_bytes_that_a_folder_gives(
    below: str, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_FIRST_BYTES", 100)
    monkeypatch.setattr(objects, "_MOST_BYTES", 1000)
    found = packed([f"file://{books}{below}"])
    assert found == packed([Path(f"{books}{below}")])
    assert found[1]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/**/*.gz", ["a/deep/two.jsonl.gz"]),
        ("**/t*", ["a-b/three.json", "a/deep/two.jsonl.gz"]),
        ("[!s]*.txt", ["five.txt"]),
        ("[a-f]???.[tu]xt", ["five.txt"]),
        ("a/*", ["a/deep/two.jsonl.gz", "a/one.jsonl"]),
    ],
)
def test_a_pattern_is_that_of_a_shell(pattern: str, expected: list[str], books: Path) -> None:
    assert packed([f"file://{books}/{pattern}"])[0] == packed([books / pattern])[0] == expected


def test_what_is_left_out_of_a_folder_is_refused_where_it_is_named(books: Path) -> None:
    below = named([f"file://{books}"])
    assert [str(path) for path in left_out(below, "text", None)] == [f"file://{books}/README.md"]
    with pytest.raises(InputError, match=f"^file://{books}/README.md: expected"):
        find_sources(named([f"file://{books}/*.md"]), "text")
    with pytest.raises(InputError, match=r"five.txt: is the same file as"):
        find_sources(named([f"file://{books}/five.txt", f"file://{books}/*.txt"]), "text")


@pytest.mark.parametrize(
    ("below", "says"),
    [
        ("/none", "/none: does not exist, or holds no files"),
        ("/*.none", "/*.none: fits no file"),
        ("/five.txt/", "/five.txt/: does not exist, or holds no files"),
    ],
)
def test_what_is_not_there_is_named_by_its_whole_url(below: str, says: str, books: Path) -> None:
    with pytest.raises(InputError) as refused:
        named([f"file://{books}{below}"])
    assert str(refused.value).startswith(f"file://{books}{says}")


def test_a_name_that_no_store_reads_is_told_and_not_left_out(books: Path) -> None:
    """Only where it would be read: not beside what a pattern fits, and not if its kind is unknown."""
    (books / "a/a picture.png").write_text("no text")
    assert len(left_out(named([f"file://{books}"]), "text", None)) == 2
    (books / "a/with a blank.txt").write_text("text")
    for below, rest in (("", None), ("/a/*.txt", None), ("/a/*.png", "text"), ("/a/a b", None)):
        with pytest.raises(InputError, match=r"/a/.* .*: a name with other characters than letters"):
            find_sources(named([f"file://{books}{below}"]), "text", rest=rest)
    assert packed([f"file://{books}/a/*.jsonl"]) == packed([books / "a/one.jsonl"])


@pytest.mark.parametrize(
    "url", ["http://host/a.txt", "s3://", "s3://B/a", "s3://key:secret@bucket/a", "file://host/a", "://a"]
)
def test_a_url_of_no_store_ends_packing_with_2_and_its_secrets_are_not_told(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", url, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("longhaul pack: input: ") and told.count("\n") == 1
    assert "secret" not in told


def changed(path: Path) -> None:
    path.write_text(path.read_text().replace("text", "TEXT"))


def cut_short(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed, "was replaced while it was packed"),
        (cut_short, "was replaced while it was packed"),
        (Path.unlink, "does not exist"),
    ],
)
def test_an_object_that_others_replace_is_not_packed(
    change: Callable[[Path], object], says: str, books: Path
) -> None:
    [first, *_] = cut_into_pieces(find_sources(named([f"file://{books}/a/one.jsonl"]), "text"), 2**20)
    change(books / "a/one.jsonl")
    with pytest.raises(InputError) as refused:
        pack_piece(first, ByteTokenizer(), "text", MemoryStore())
    assert str(refused.value).startswith(f"file://{books}/a/one.jsonl: {says}")


def test_a_large_object_is_read_in_ranges_of_which_few_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789abcde\n" * 2**20 * 2)
    asked: list[tuple[int, int]] = []
    read = LocalStore.read

    def counted(store: LocalStore, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        asked.append((start, len(into)))
        return read(store, name, start, into)

    monkeypatch.setattr(LocalStore, "read", counted)
    [source] = find_sources(named([f"file://{path}"]), "text")
    [_, second, *_] = cut_into_pieces([source], 4 * 2**20)
    assert isinstance(source, InputSource) and isinstance(source.path, StoredObject)
    for span in second.spans:
        assert sum(len(text.text) for text in texts_of(span, "text")) == 4 * 2**20
    assert min(start for start, _ in asked) == 4 * 2**20 - 1
    assert max(start for start, _ in asked) <= 8 * 2**20
    [whole] = cut_into_pieces([source], 2**30)
    assert sum(len(text.text) for span in whole.spans for text in texts_of(span, "text")) == 2**25
    assert max(num_bytes for _, num_bytes in asked) == 8 * 2**20


class Bucket(MemoryStore):
    """A store whose listing tells sizes and versions. It notes which objects are looked at by themselves."""

    def __init__(self, listed: Mapping[str, tuple[int, str | None]], differs: str = "") -> None:
        super().__init__()
        self._listed, self._differs = listed, differs
        self.looked: list[str] = []

    def look_at_all(self) -> Mapping[str, tuple[int, str | None]]:
        return {
            name: (size, version and version + self._differs)
            for name, (size, version) in self._listed.items()
        }

    def look(self, name: str) -> tuple[int, str | None]:
        self.looked.append(name)
        if name not in self._listed or name.startswith("folder"):
            raise Missing(name)
        return self._listed[name]

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        raise AssertionError("nothing is read")


LISTED: dict[str, tuple[int, str | None]] = {
    "a b.txt": (5, '"x"'),
    "b/2.txt": (7, '"2"'),
    "a/1.txt": (3, '"1"'),
    ".hidden.txt": (4, '"h"'),
    "a/empty.txt": (0, '"0"'),
    "folder": (0, '"f"'),
}


@pytest.mark.parametrize("retrying", [False, True])
@pytest.mark.parametrize(
    ("differs", "looked"),
    [("", {"b/2.txt", "a/empty.txt", "folder"}), ("-", {"b/2.txt", "a/1.txt", "a/empty.txt", "folder"})],
)
def test_a_listing_that_agrees_with_the_store_saves_looking_at_each_object(
    differs: str, looked: set[str], retrying: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(LISTED, differs)
    store: Store = RetryingStore(bucket) if retrying else bucket
    monkeypatch.setattr(stored_inputs, "store_at", lambda url, patience=None: store)
    [found] = stored_inputs.find_objects("s3://bucket/")
    assert isinstance(found, stored_inputs.StoredFolder)
    assert [(one.name, one.num_bytes, one.version) for one in found.objects] == [
        ("a/1.txt", 3, '"1"'),
        ("a/empty.txt", 0, '"0"'),
        ("a b.txt", 0, None),
        ("b/2.txt", 7, '"2"'),
    ]
    assert set(bucket.looked) == looked
    assert stored_inputs.find_objects("s3://bucket/*/[0-9].txt") == [found.objects[0], found.objects[3]]
