"""The store contract on a directory: each write is on the disk before it returns."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC, EROFS
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkpointing.stores.contract import Upload
from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    Denied,
    Full,
    Missing,
    StoreError,
    Unavailable,
    check_name,
    is_name,
)

# What a file system says where no object of that name is: a folder is none, nor has an object any below it.
_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FULL = (ENOSPC, EDQUOT)
_DENIED = (EROFS,)
_TEMPORARY = ".tmp-"
# So many folders removed right after they were made mean that something is broken.
_MOST_RACES = 100


class LocalStore:
    """A directory. Every write is flushed to the disk, file and directory, before it returns."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def probe(self) -> None:
        try:
            with self._temporary(self.root, b""):
                pass
        except OSError as error:
            raise StoreError(
                f"store: {self.root} can't be written ({error.strerror}: {error.filename}); "
                "choose another with --store"
            ) from error

    def put(self, name: str, data: Buffer) -> None:
        target = self._path(name)
        with self._as_store_errors(name):
            with self._temporary(target.parent, data) as temporary:
                temporary.replace(target)
            _sync_directory(target.parent)

    def create(self, name: str, data: Buffer) -> None:
        target = self._path(name)
        with self._as_store_errors(name):
            with self._temporary(target.parent, data) as temporary:
                try:
                    os.link(temporary, target)
                except FileExistsError as error:
                    raise Conflict(f"store: {name} exists already") from error
            _sync_directory(target.parent)

    def get(self, name: str) -> bytes:
        path = self._path(name)
        with self._as_store_errors(name):
            try:
                with FileIO(path) as file:
                    return file.readall()
            except _NO_OBJECT as error:
                raise Missing(f"store: {name} does not exist") from error

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        path = self._path(name)
        with self._as_store_errors(name):
            try:
                with path.open("rb", buffering=0) as file:
                    file.seek(start)
                    return _read_all(file, into)
            except _NO_OBJECT as error:
                raise Missing(f"store: {name} does not exist") from error

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._as_store_errors(name):
            try:
                with FileIO(path) as file:
                    return os.fstat(file.fileno()).st_size
            except _NO_OBJECT as error:
                raise Missing(f"store: {name} does not exist") from error

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        folder = self._path(prefix)
        with self._as_store_errors(prefix):
            # What else lies there, half written or copied by hand, is no object.
            yield from (name for name in _walk(folder, prefix) if name > after and is_name(name))

    def contents(self) -> Iterator[str]:
        with self._as_store_errors("."):
            yield from (name.removeprefix("/") for name in _walk(self.root, ""))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._as_store_errors(name), suppress(*_NO_OBJECT):
            path.unlink()
            _sync_directory(path.parent)
            self._remove_empty(path.parent)

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> "Sequence[Upload]":
        """Files that were half written when their writers were killed, by when they were last written to."""
        from checkpointing.stores.contract import Upload

        found = []
        for path in self._path(prefix).rglob(f"{_TEMPORARY}*"):
            with suppress(FileNotFoundError):
                started = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                if started < before:
                    found.append(Upload(name=str(path.relative_to(self.root)), id="", started=started))
        return found

    def abort_uploads(self, uploads: "Sequence[Upload]") -> None:
        for path in (self.root / upload.name for upload in uploads):
            with self._as_store_errors(path.name):
                path.unlink(missing_ok=True)
            self._remove_empty(path.parent)

    def _remove_empty(self, folder: Path) -> None:
        with suppress(OSError):  # Something is in it, or somebody else was faster.
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    @contextmanager
    def _temporary(self, folder: Path, data: Buffer) -> Iterator[Path]:
        """``data`` on the disk under a name that is no object's; it is gone afterwards."""
        path = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with _new_file(path) as file:
                _write_all(file, memoryview(data))
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _as_store_errors(self, name: str) -> Iterator[None]:
        """What the operating system says as one of our errors, with the place in front."""
        try:
            yield
        except OSError as error:
            raise _kind_of(error)(
                f"store: {self.root}: {name}: {error.strerror or error}; "
                "mend it, or choose another with --store"
            ) from error


def _read_all(file: FileIO, into: memoryview) -> int:
    """The system may give less at a time than was asked for."""
    done = 0
    while done < len(into) and (count := file.readinto(into[done:])):
        done += count
    return done


def _write_all(file: FileIO, data: memoryview) -> None:
    """As above: one call writes at most 2 GiB."""
    while data:
        data = data[file.write(data) :]


def _kind_of(error: OSError) -> type[Unavailable]:
    if error.errno in _FULL:
        return Full
    return Denied if isinstance(error, PermissionError) or error.errno in _DENIED else Unavailable


def _new_file(path: Path) -> FileIO:
    """Whoever deletes the last object of a folder removes it too, at any moment: then made again."""
    for _ in range(_MOST_RACES):
        with suppress(FileNotFoundError):
            _make_directory(path.parent)
            return path.open("xb", buffering=0)
    _make_directory(path.parent)
    return path.open("xb", buffering=0)


def _make_directory(folder: Path) -> None:
    """With its parents, each made durable in the one above it."""
    if not folder.is_dir():
        _make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_directory(folder.parent)


def _walk(folder: Path, within: str) -> Iterator[str]:
    """The names of all files below ``folder``, whose own is ``within``. Links to folders are not followed.

    A folder that can't be read raises, as it must not look empty: all its results would be measured again.
    """
    ahead = [(str(folder), within)]
    while ahead:
        path, name = ahead.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append((entry.path, f"{name}/{entry.name}"))
                    elif not entry.is_dir():
                        yield f"{name}/{entry.name}"
        except _NO_OBJECT:
            continue


def _sync_directory(folder: Path) -> None:
    with suppress(FileNotFoundError):  # All that was in it was deleted meanwhile, and so was the folder.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
