"""``longhaul pack -``: what comes by standard input is packed as the file would be, and nothing is left."""

import gzip
import io
import json
import stat
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from jobs.cli.__main__ import main
from jobs.packing import pieces
from jobs.packing.inputs import standard_input

LINES = b"\n".join(json.dumps({"text": f"line {number} \xfc"}).encode() for number in range(300))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> io.BytesIO:
    """What standard input holds; to be written by the test."""
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
    return data


def give(given: io.BytesIO, data: bytes) -> None:
    given.write(data)
    given.seek(0)


def parquet() -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "two"]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("kind", "data"), [("jsonl", LINES), ("text", LINES), ("parquet", parquet()), ("csv", b"text\na\nb\n")]
)
def test_standard_input_gives_the_shards_of_a_file(
    kind: str, data: bytes, given: io.BytesIO, temporary: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In several pieces too, and without a Ray even if there is a cluster: its nodes don't see the file."""
    monkeypatch.setattr(pieces.cut_into_pieces, "__defaults__", (700,))
    monkeypatch.setenv("RAY_ADDRESS", "nobody:1")
    give(given, data)
    assert main(["pack", "-", "--as", kind, "--out", str(tmp_path / "there")]) == 0
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(pieces.cut_into_pieces, "__defaults__", (2**20,))
    (tmp_path / "file").write_bytes(data)
    assert main(["pack", str(tmp_path / "file"), "--as", kind, "--out", str(tmp_path / "here")]) == 0
    assert shards(tmp_path / "there") == shards(tmp_path / "here")
    assert [*temporary.iterdir()] == []


def shards(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.bin")))


def test_nobody_else_can_open_the_folder(given: io.BytesIO) -> None:
    give(given, b"secret")
    with standard_input.with_standard_input(["-"], "text") as [path]:
        assert isinstance(path, Path) and path.read_bytes() == b"secret"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "data", "says"),
    [
        (["-"], LINES, "standard input: nothing tells what is in it; say so, such as by --as jsonl"),
        (["-", "-", "--as", "text"], LINES, "standard input: is named twice"),
        (["-", "--as", "text"], gzip.compress(LINES), "standard input: is compressed"),
        (["-", "--as", "jsonl"], LINES + b"\n{", "standard input: the line at byte 8,290 is not JSON"),
        (["-", "--as", "text"], b"", "-: holds no text"),
        (["-", "--as", "text"], b"a" * 2000, "standard input: has more than 1,999 bytes"),
    ],
)
def test_what_can_not_be_packed_is_told_by_its_name_and_leaves_nothing(
    arguments: list[str], data: bytes, says: str, given: io.BytesIO, temporary: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(standard_input, "MOST_BYTES", 1999 if len(data) == 2000 else 2**20)
    give(given, data)
    assert main(["pack", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"longhaul pack: {says}")
    assert [*temporary.iterdir()] == []


def test_a_disk_that_others_need_too_is_not_filled(
    given: io.BytesIO, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(standard_input, "LEAST_FREE_BYTES", 2**62)
    give(given, LINES)
    assert main(["pack", "-", "--as", "text", "--out", str(tmp_path / "out")]) == 2
    assert f"standard input: {temporary} has less than" in capsys.readouterr().err
    assert [*temporary.iterdir()] == []


def test_a_place_with_tokens_is_refused_before_anything_is_read(
    given: io.BytesIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give(given, LINES)
    command = ["pack", "-", "--as", "jsonl", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    given.seek(0)
    assert main(command) == 2
    assert "holds packed tokens already" in capsys.readouterr().err
    assert given.tell() == 0
