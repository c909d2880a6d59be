"""A disk that remembers what was flushed, so that a test can see what a power cut would leave of a directory.

Programs see a directory as they left it; a disk owes them only the file contents and the folder entries that
were flushed, each by an ``fsync`` of its own. Between two flushes it may have written anything of the rest.
"""

import os
import random
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from errno import ENOTEMPTY
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# Of one folder: names, and the inodes behind them.
Entries = Mapping[str, int]


class Luck(Enum):
    """What a disk has written of that which was not flushed."""

    NOTHING = auto()
    NAMES = auto()
    """All names, but no contents: what a journal of metadata does."""
    SOME_NAMES = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Just before ``call``: the entries of each folder, flushed and as seen, and the flushed ``contents``."""

    call: str
    contents: Mapping[int, bytes]
    flushed: Mapping[int, Entries]
    seen: Mapping[int, Entries]


class ForgetfulDisk:
    """``folder`` is on it, and everything that happens there while it is watched becomes a moment.

    What is removed is put aside in ``attic``, so that no inode ever gets a second meaning.
    """

    def __init__(self, folder: Path, attic: Path) -> None:
        self.moments: list[Moment] = []
        self._folder = folder
        self._attic = attic
        self._numbers = count()
        self._contents: dict[int, bytes] = {}
        self._flushed: dict[int, Entries] = {_inode(folder): _entries(folder)}
        self._folders = {_inode(folder)}
        self._unlink, self._replace, self._mkdir, self._link = os.unlink, os.replace, os.mkdir, os.link

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """All that changes a directory passes here. Elsewhere nothing is flushed, which only takes time."""
        for name, do in (
            ("fsync", self._on_fsync),
            ("link", self._on_link),
            ("replace", self._on_replace),
            ("mkdir", self._on_mkdir),
            ("unlink", self._put_aside),
            ("rmdir", self._on_rmdir),
        ):
            patch.setattr(os, name, self._noted(name, do))

    def note(self, call: str) -> None:
        seen = {_inode(folder): _entries(folder) for folder in [self._folder, *self._folder.rglob("*/")]}
        self.moments.append(
            Moment(call=call, contents=dict(self._contents), flushed=dict(self._flushed), seen=seen)
        )

    def after_a_cut(self, moment: Moment, luck: Luck, target: Path, rng: random.Random) -> None:
        """Writes to ``target`` what is found when the power is back."""
        self._restore(_inode(self._folder), target, moment, luck, rng)

    def _restore(self, inode: int, target: Path, moment: Moment, luck: Luck, rng: random.Random) -> None:
        target.mkdir(parents=True)
        flushed = moment.flushed.get(inode, {})
        for name, child in _found(flushed, moment.seen.get(inode, flushed), luck, rng).items():
            if child in self._folders:
                self._restore(child, target / name, moment, luck, rng)
            else:
                (target / name).write_bytes(moment.contents.get(child, b""))

    def _noted(self, name: str, do: Callable[..., None]) -> Callable[..., None]:
        original = getattr(os, name)

        def call(*args: Any, **more: Any) -> None:
            place, *rest = args
            path = _path_of(place, more.get("dir_fd", more.get("src_dir_fd")))
            if path.is_relative_to(self._folder):
                self.note(f"{name} {args[-1]}")
                if "dst_dir_fd" in more:
                    rest = [_path_of(rest[0], more["dst_dir_fd"])]
                do(place if name == "fsync" else path, *rest)
            elif name != "fsync":
                original(*args, **more)

        return call

    def _on_fsync(self, descriptor: int) -> None:
        path, inode = _path_of(descriptor), os.fstat(descriptor).st_ino
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._flushed[inode] = _entries(path)
        else:
            self._contents[inode] = path.read_bytes()

    def _on_link(self, source: Path, target: Path) -> None:
        self._link(source, target)

    def _on_replace(self, source: Path, target: Path) -> None:
        if Path(target).exists():
            self._link(target, self._attic / str(next(self._numbers)))
        self._replace(source, target)

    def _on_mkdir(self, path: Path, mode: int = 0o777) -> None:
        self._mkdir(path, mode)
        self._folders.add(_inode(Path(path)))

    def _on_rmdir(self, path: Path) -> None:
        if _entries(path):
            raise OSError(ENOTEMPTY, os.strerror(ENOTEMPTY), str(path))
        self._put_aside(path)

    def _put_aside(self, path: Path) -> None:
        self._replace(path, self._attic / str(next(self._numbers)))


def _found(flushed: Entries, seen: Entries, luck: Luck, rng: random.Random) -> Entries:
    match luck:
        case Luck.NOTHING:
            return flushed
        case Luck.NAMES:
            return seen
        case Luck.SOME_NAMES:
            picked = {name: rng.choice((flushed, seen)).get(name) for name in sorted({**flushed, **seen})}
            return {name: inode for name, inode in picked.items() if inode is not None}


def _entries(folder: Path) -> Entries:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _path_of(place: int | str | Path, folder: int | None = None) -> Path:
    """``folder`` is the descriptor of where it begins."""
    if isinstance(place, int):
        return Path(f"/proc/self/fd/{place}").readlink()
    return Path(place) if folder is None else _path_of(folder) / place
