"""Where results live: one small protocol and its implementations.

Names are relative paths of plain characters joined by ``/``; they never escape the store. A reader
sees a whole object or none, also after a crash. ``open_store`` turns what a user wrote into a store.
"""

import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

_SEGMENT = re.compile(r"[A-Za-z0-9._+=@-]{1,200}")


class StoreError(Exception):
    """The store can't be used; the message says where, what was found and what to do."""


class Unavailable(StoreError):
    """The store did not do it now; doing it again later may work."""


class Conflict(StoreError):
    """``create`` found the name taken: another writer was first."""


class Missing(StoreError):
    """No object of that name."""


class Store(Protocol):
    """Objects by name. ``put`` replaces atomically; ``create`` is won by exactly one caller."""

    url: str

    def probe(self) -> None:
        """Raises ``StoreError`` unless objects can be written here."""

    def put(self, name: str, data: bytes) -> None: ...

    def create(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...

    def list(self, prefix: str) -> Iterator[str]:
        """All names below the folder ``prefix``, in no order; nothing where there is no such folder."""

    def delete(self, name: str) -> None: ...


def open_store(url: str, *, base: Path | None = None) -> Store:
    """The store at ``url``, a directory; nothing is touched yet. ``base`` is where relative ones start."""
    scheme = urlsplit(url).scheme
    if scheme not in ("", "file"):
        raise StoreError(
            f"store: {scheme}:// is not supported yet; expected a directory such as "
            "'results' or '/data/results'"
        )
    path = Path(urlsplit(url).path if scheme else url).expanduser()
    root = path if path.is_absolute() else (base or Path.cwd()) / path
    return LocalStore(root)


def check_name(name: str) -> str:
    """The name itself, if it stays inside the store and is plain on every platform."""
    parts = name.split("/")
    if all(_SEGMENT.fullmatch(part) and part.strip(".") for part in parts):
        return name
    raise StoreError(f"store: {name!r} is not a name (letters, digits and ._+=@- between slashes)")


class LocalStore:
    """A directory. Every write is flushed to the disk, file and directory, before it returns."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def probe(self) -> None:
        root = self.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._write_temporary(root, b"").unlink()
        except OSError as error:
            raise StoreError(
                f"store: {root} can't be written ({error.strerror}); choose another with --store"
            ) from error

    def put(self, name: str, data: bytes) -> None:
        with _as_store_errors(name):
            target = self._prepare(name)
            temporary = self._write_temporary(target.parent, data)
            temporary.replace(target)
            _sync_directory(target.parent)

    def create(self, name: str, data: bytes) -> None:
        with _as_store_errors(name):
            target = self._prepare(name)
            temporary = self._write_temporary(target.parent, data)
            try:
                os.link(temporary, target)
            except FileExistsError as error:
                raise Conflict(f"store: {name} exists already") from error
            finally:
                temporary.unlink()
            _sync_directory(target.parent)

    def get(self, name: str) -> bytes:
        with _as_store_errors(name):
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError as error:
                raise Missing(f"store: {name} does not exist") from error

    def list(self, prefix: str) -> Iterator[str]:
        for directory, _, files in os.walk(self._path(prefix)):
            relative = Path(directory).relative_to(self.root)
            yield from (str(PurePosixPath(relative / file)) for file in files if not file.startswith(".tmp-"))

    def delete(self, name: str) -> None:
        with _as_store_errors(name), suppress(FileNotFoundError):
            path = self._path(name)
            path.unlink()
            _sync_directory(path.parent)

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _prepare(self, name: str) -> Path:
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _write_temporary(self, folder: Path, data: bytes) -> Path:
        path = folder / f".tmp-{secrets.token_hex(8)}"
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path


class MemoryStore:
    """The same contract in a dictionary, for tests and trials."""

    def __init__(self) -> None:
        self.url = "memory:"
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def probe(self) -> None:
        return None

    def put(self, name: str, data: bytes) -> None:
        self._objects[check_name(name)] = data

    def create(self, name: str, data: bytes) -> None:
        with self._lock:
            if check_name(name) in self._objects:
                raise Conflict(f"store: {name} exists already")
            self._objects[name] = data

    def get(self, name: str) -> bytes:
        try:
            return self._objects[check_name(name)]
        except KeyError as error:
            raise Missing(f"store: {name} does not exist") from error

    def list(self, prefix: str) -> Iterator[str]:
        folder = check_name(prefix) + "/"
        yield from [name for name in self._objects if name.startswith(folder)]

    def delete(self, name: str) -> None:
        self._objects.pop(check_name(name), None)


class _as_store_errors:
    """Turns what the operating system says into our errors, with the name in front."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise Unavailable(f"store: {self._name}: {error.strerror or error}") from error


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
