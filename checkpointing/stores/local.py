"""The store contract on a directory: each write is on the disk before it returns."""

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC, ENOTDIR, EROFS
from io import FileIO
from pathlib import Path

from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    Denied,
    Full,
    Missing,
    NotAFile,
    StoreError,
    Unavailable,
    Upload,
    check_name,
    is_name,
)
from checkpointing.stores.folders import (
    MOST_DEEP,
    LinkFound,
    NotPlain,
    TooDeep,
    file_in,
    files_below,
    folder_at,
    open_folder,
    read_into,
    refuse_link,
    regular_file,
    sync,
    write_all,
)
from checkpointing.stores.versions import version_of

# What a file system answers for a missing object: a folder is no object, and no object has others below it.
_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FULL = (ENOSPC, EDQUOT)
_DENIED = (EROFS,)
_TEMPORARY = ".tmp-"
_HALF_WRITTEN = re.compile(re.escape(_TEMPORARY) + "[0-9a-f]{16}")
# This many folders removed right after they were made mean that something is broken.
_MOST_RACES = 100


class LocalStore:
    """A directory. Every write flushes the file and its directory to the disk before it returns."""

    _mode_of_folders = 0o777
    _another = "choose another with --store"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def probe(self) -> None:
        try:
            _make_directory(self.root)
            with folder_at(self.root) as folder, _temporary(folder, b""):
                pass
        except OSError as error:
            where = self.root / (error.filename or "")
            raise StoreError(
                f"store: {self.root} can't be written ({error.strerror}: {where}); {self._another}"
            ) from error

    def put(self, name: str, data: Buffer) -> None:
        with self._as_store_errors(name), self._written(name, data) as (folder, temporary, last):
            os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)

    def create(self, name: str, data: Buffer) -> None:
        with self._as_store_errors(name), self._written(name, data) as (folder, temporary, last):
            try:
                os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError as error:
                raise Conflict(f"store: {name} exists already") from error
            sync(folder)

    def get(self, name: str) -> bytes:
        with self._as_store_errors(name), self._open(name) as file:
            return file.readall()

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return self.read(name, start, into)[0]

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        with self._as_store_errors(name), self._open(name) as file:
            file.seek(start)
            count = read_into(file, into)
            # Asked for after the reading, so that bytes that were changed meanwhile have another version.
            return count, version_of(os.fstat(file.fileno()))

    def open_file(self, name: str) -> FileIO:
        """Opens an object for reading; the caller closes it."""
        with self._as_store_errors(name):
            return self._open(name)

    def size(self, name: str) -> int:
        return self.look(name)[0]

    def look(self, name: str) -> tuple[int, str | None]:
        with self._as_store_errors(name), self._open(name) as file:
            found = os.fstat(file.fileno())
            return found.st_size, version_of(found)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        names = check_name(prefix).split("/")
        with self._as_store_errors(prefix), suppress(*_NO_OBJECT), self._folder(names) as folder:
            # Other files there, half written or copied by hand, are no objects.
            yield from (name for name, _ in files_below(folder, prefix) if name > after and is_name(name))

    def contents(self) -> Iterator[str]:
        with self._as_store_errors("."), suppress(*_NO_OBJECT), self._folder([]) as folder:
            yield from (name.removeprefix("/") for name, _ in files_below(folder, ""))

    def delete(self, name: str) -> None:
        self._delete(check_name(name))

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        """Returns files that were half written when their writers were killed, dated by their last write."""
        names, found = check_name(prefix).split("/"), []
        with self._as_store_errors(prefix), suppress(*_NO_OBJECT), self._folder(names) as folder:
            for name, entry in files_below(folder, prefix):
                with suppress(FileNotFoundError):
                    started = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime, UTC)
                    if is_half_written(name) and started < before:
                        found.append(Upload(name=name, id="", started=started))
        return found

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        for upload in uploads:
            if is_half_written(upload.name):
                self._delete(upload.name)

    def _delete(self, name: str) -> None:
        *names, last = name.split("/")
        with self._as_store_errors(name), suppress(*_NO_OBJECT), self._folder(names) as folder:
            refuse_link(folder, last, name)
            os.unlink(last, dir_fd=folder)
            sync(folder)
            self._remove_empty(names)

    def _remove_empty(self, names: Sequence[str]) -> None:
        with suppress(OSError):  # The folder is not empty, or another process was faster.
            while names:
                *names, last = names
                with self._folder(names) as above:
                    os.rmdir(last, dir_fd=above)

    def _folder(self, names: Sequence[str], *, make: bool = False) -> AbstractContextManager[int]:
        """Opens a folder. Only the root and the path above it may contain links."""
        if make:
            _make_directory(self.root)
        return folder_at(self.root, names, make=make, mode=self._mode_of_folders, look=self._look_at)

    def _look_at(self, folder: int, name: str, *, make: bool) -> None:
        """Is called with each open folder below the root on the way to an object, and may raise."""

    def _open(self, name: str) -> FileIO:
        *names, last = check_name(name).split("/")
        if not names:
            # Twice as fast, which counts for ten thousand shards. What is wrong with others is told below.
            with suppress(OSError):
                return FileIO(regular_file(f"{self.root}/{last}"))
        try:
            folder = open_folder(self.root, names, look=self._look_at)
            try:
                return file_in(folder, last)
            finally:
                os.close(folder)
        except _NO_OBJECT as error:
            raise Missing(f"store: {name} does not exist") from error

    @contextmanager
    def _written(self, name: str, data: Buffer) -> Iterator[tuple[int, str, str]]:
        """Writes ``data`` to the disk under a temporary name, which is removed on exit.

        Yields the object's folder, the temporary name in it, and the object's own name.
        """
        *names, last = check_name(name).split("/")
        with ExitStack() as stack:
            for attempt in range(_MOST_RACES + 1):
                # A process that deletes a folder's last object also removes the folder, at any moment. It
                # is then made again.
                try:
                    folder = stack.enter_context(self._folder(names, make=True))
                    temporary = stack.enter_context(_temporary(folder, data))
                    break
                except FileNotFoundError:
                    if attempt == _MOST_RACES:
                        raise
            yield folder, temporary, last

    @contextmanager
    def _as_store_errors(self, name: str) -> Iterator[None]:
        """Turns errors of the operating system into store errors, with the place in front."""
        try:
            yield
        except LinkFound as error:
            link = name if name.endswith(f"/{error.filename}") else error.filename
            raise NotAFile(
                f"store: {self.root}: {link} is a link, and inside a store none is followed; put what it "
                f"leads to in its place, or {self._another}"
            ) from None
        except NotPlain:
            raise NotAFile(
                f"store: {self.root}: {name} is a pipe, a socket or a device, where a file must be; "
                f"remove it, or {self._another}"
            ) from None
        except TooDeep as error:
            raise NotAFile(
                f"store: {self.root}: {error.filename} has more than {MOST_DEEP} folders in one another; "
                f"remove them, or {self._another}"
            ) from None
        except OSError as error:
            raise _kind_of(error)(
                f"store: {self.root}: {name}: {error.strerror or error}; mend it, or {self._another}"
            ) from error


def _kind_of(error: OSError) -> type[Unavailable]:
    if error.errno in _FULL:
        return Full
    return Denied if isinstance(error, PermissionError) or error.errno in _DENIED else Unavailable


def _make_directory(folder: Path) -> None:
    """Makes the directory and its parents; each is made durable in its parent."""
    if not folder.is_dir():
        _make_directory(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            folder.stat()  # Raises what is wrong with a link that leads nowhere.
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(folder)) from None
        with folder_at(folder.parent) as above:
            sync(above)


@contextmanager
def _temporary(folder: int, data: Buffer) -> Iterator[str]:
    """Writes ``data`` to the disk under a name that no object has, and deletes that file on exit."""
    name = f"{_TEMPORARY}{secrets.token_hex(8)}"
    file = file_in(folder, name, "x")
    try:
        with file:
            write_all(file, memoryview(data))
            os.fsync(file.fileno())
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def is_half_written(name: str) -> bool:
    """Says whether ``name`` is a temporary name. Its last part is not a valid object name, so no object has
    it.
    """
    folder, _, last = name.rpartition("/")
    return is_name(folder) and _HALF_WRITTEN.fullmatch(last) is not None
