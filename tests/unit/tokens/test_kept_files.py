"""Local files that stay open: their bytes are always those of the version that is told with them."""

import os
import resource
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import pytest

from checkpointing.stores.local import LocalStore
from jobs.training.data.kept_files import KeptFiles, fair_share


class Opened:
    """A folder whose files are opened through it, and a clock."""

    def __init__(self, place: Path, most: int = 9) -> None:
        self.store = LocalStore(place)
        self.files: list[FileIO] = []
        self.now_s = 0.0
        self.kept = KeptFiles(self.open, most, lambda: self.now_s)

    def open(self, name: str) -> FileIO:
        self.files.append(self.store.open_file(name))
        return self.files[-1]

    def read(self, name: str, starts: Sequence[int] = (0,)) -> tuple[str | None, bytes]:
        room = bytearray(2 * len(starts))
        pieces = [(start, memoryview(room)[2 * at : 2 * at + 2]) for at, start in enumerate(starts)]
        return self.kept.fill(name, pieces), bytes(room)

    def num_open(self) -> int:
        return sum(not file.closed for file in self.files)


def test_many_pieces_and_many_reads_open_a_file_once(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.store.put("a/0", b"abcdef")
    version = opened.store.look("a/0")[1]
    assert opened.read("a/0", (4, 0, 2)) == (version, b"efabcd")
    assert opened.read("a/0", (1,)) == (version, b"bc")
    assert len(opened.files) == 1


@pytest.mark.parametrize("change", ["replace", "remove", "write"])
def test_an_open_file_that_was_changed_has_another_version_at_once(change: str, tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.store.put("0", b"abcd")
    version, _ = opened.read("0")
    # File systems tick some hundred times a second.
    os.utime(tmp_path / "0", (1, 1))
    version, _ = opened.read("0")
    if change == "replace":
        opened.store.put("0", b"wxyz")
    elif change == "remove":
        (tmp_path / "0").unlink()
    else:
        (tmp_path / "0").write_bytes(b"wxyz!")
    assert opened.read("0")[0] != version
    assert len(opened.files) == 1


def test_after_a_second_a_file_is_opened_anew(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.store.put("0", b"abcd")
    opened.read("0")
    opened.store.put("0", b"wxyz")
    opened.now_s = 1.0
    assert opened.read("0")[1] == b"ab"
    opened.now_s = 1.1
    assert opened.read("0") == (opened.store.look("0")[1], b"wx")
    assert opened.num_open() == 1


def test_a_file_that_was_removed_does_not_stay_open(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.store.put("0", b"abcd")
    opened.read("0")
    (tmp_path / "0").unlink()
    opened.now_s = 2.0
    assert opened.read("0")[0] is None
    assert opened.num_open() == 0


def test_no_more_files_are_open_than_may_be(tmp_path: Path) -> None:
    opened = Opened(tmp_path, most=2)
    for name in "abc":
        opened.store.put(name, name.encode() * 2)
    for name in "abcab":
        assert opened.read(name)[1] == name.encode() * 2
        assert opened.num_open() <= 2
    del opened.kept
    assert opened.num_open() == 0


def test_what_can_t_be_read_whole_is_not_filled(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.store.put("0", b"abc")
    (tmp_path / "link").symlink_to("0")
    assert opened.read("0", (0, 2))[0] is None
    assert [opened.read(name)[0] for name in ("gone", "link", "../0")] == [None, None, None]


@pytest.mark.parametrize(
    ("allowed", "num_sources", "most"),
    [
        (1024, 1, 256),
        (resource.RLIM_INFINITY, 1, 256),
        (65536, 4, 64),
        (128, 1, 32),
        (128, 4, 8),
        (256, 300, 1),
    ],
)
def test_no_more_stay_open_than_a_quarter_of_what_the_process_may_open(
    allowed: int, num_sources: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert fair_share(num_sources) == most
