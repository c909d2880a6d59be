"""Publishing writes a report's files to the store, and pulls copies of them into a folder.

Layout: ``reports/<name>/<file>``, and last ``reports/<name>/manifest.json`` with the size and SHA-256 of
every file. Each file is replaced as a whole. A pull that runs while a report is replaced sees files that
don't match the manifest, and starts again with the new manifest.

Whoever may write to the store names the files. So a pull replaces and removes only what a pull put there, by
the manifest in the folder, which counts if it is a file of this user alone.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from stat import S_ISREG

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Missing, Store, StoreError, is_name
from checkpointing.stores.folders import LinkFound, NotPlain, file_in, folder_at, names_in, write_all

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_CHUNK_BYTES = 8 * 1024 * 1024
_NUM_TRIES = 5
_PAUSE_S = 1.0
# No name in a store begins with a dot, so this prefix can't collide with a published file.
_UNFINISHED = ".unfinished-"
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_MANIFEST_BYTES = 16 << 20
# A file of this name is not there, or not one of ours.
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, LinkFound, NotPlain)


class PullError(Exception):
    """The report in the store can't be pulled. The message says what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """This is the result of a pull. Names are relative to the folder; ``removed`` files belonged to the
    report that was pulled before.
    """

    fetched: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]
    num_bytes: int


def publish(store: Store, name: str, files: Mapping[str, bytes | memoryview]) -> None:
    """Replaces the report ``name``. Files that only the earlier report had are deleted last."""
    before: dict[str, PublishedFile] = {}
    with suppress(PullError):  # A broken manifest is replaced.
        before = _read_manifest(store, name)
    entries = {file: _entry(data) for file, data in files.items()}
    for file, data in files.items():
        if before.get(file) != entries[file] or not _is_stored(
            store, f"reports/{name}/{file}", entries[file]
        ):
            store.put(f"reports/{name}/{file}", data)
    store.put(f"reports/{name}/{MANIFEST}", _encode(entries))
    for file in sorted(before.keys() - entries.keys()):
        store.delete(f"reports/{name}/{file}")


def reports_of(store: Store) -> tuple[str, ...]:
    """The names of all reports in the store."""
    ending = f"/{MANIFEST}"
    names = (name.removeprefix("reports/") for name in store.list("reports") if name.endswith(ending))
    return tuple(sorted(name.removesuffix(ending) for name in names))


def pull(store: Store, name: str, folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> Pulled:
    """Makes ``folder`` a copy of the report, fetching only files that are missing or changed.

    Downloads that broke off are resumed. Each file is verified before it gets its name. Raises ``PullError``.
    """
    for attempt in range(_NUM_TRIES):
        entries = _read_manifest(store, name)
        if not entries:
            raise PullError(f"{store.url}: there is no report {name!r}{_other_reports(store)}")
        try:
            return _pull(store, name, entries, folder)
        except _Changed as changed:
            problem = changed
        except OSError as error:
            place = error.filename2 or error.filename or folder
            raise PullError(
                f"{place}: can't be written ({error.strerror}); give another folder, or make room there"
            ) from None
        if attempt < _NUM_TRIES - 1:
            sleep(_PAUSE_S)
    raise PullError(
        f"{store.url}: reports/{name}: {problem}; make the report again with `longhaul report`"
    ) from problem


class _Changed(Exception):
    """A file in the store is not what the manifest says."""


def _pull(store: Store, name: str, entries: Mapping[str, PublishedFile], folder: Path) -> Pulled:
    before = _local_manifest(folder)
    for file in sorted(entries.keys() - before.keys()):
        with _place_in_errors(folder, file):
            if not _is_same(folder, file, entries[file]):
                _refuse_to_replace(folder, file)
    fetched: list[str] = []
    for file, entry in sorted(entries.items()):
        with _place_in_errors(folder, file):
            if not _is_same(folder, file, entry):
                _fetch(store, f"reports/{name}/{file}", entry, folder, file)
                fetched.append(file)
    ours = {file: entry for file, entry in entries.items() if file in before or file in fetched}
    # A pull that breaks off from here on leaves files that the next one knows.
    _write_manifest(folder, before | ours)
    # Only now, so that a pull that breaks off leaves the report that was there.
    for file in fetched:
        with _place_in_errors(folder, file), _opened(folder, file) as (within, last):
            os.replace(_unfinished(entries[file], last), last, src_dir_fd=within, dst_dir_fd=within)
    removed = [file for file in sorted(before.keys() - entries.keys()) if _remove(folder, file, before[file])]
    _remove_unfinished(folder, {*before, *entries})
    _write_manifest(folder, ours)
    num_bytes = sum(entries[file].num_bytes for file in fetched)
    return Pulled(
        fetched=tuple(fetched),
        unchanged=tuple(file for file in sorted(entries) if file not in fetched),
        removed=tuple(removed),
        num_bytes=num_bytes,
    )


def _write_manifest(folder: Path, entries: Mapping[str, PublishedFile]) -> None:
    with _place_in_errors(folder, MANIFEST):
        _write(folder, MANIFEST, _encode(entries))


def _refuse_to_replace(folder: Path, file: str) -> None:
    """Raises ``PullError`` if a file of this user has the name. What others planted there is replaced."""
    with suppress(*_NOT_THERE), _opened(folder, file) as (within, last):
        if _is_ours_alone(os.stat(last, dir_fd=within, follow_symlinks=False)):
            raise PullError(
                f"{folder / file}: is there already, and no pull put it there; give another folder"
            )


def _remove(folder: Path, file: str, entry: PublishedFile) -> bool:
    """Removes the file unless the user changed it, or replaced it by a link. Returns whether it did."""
    with suppress(*_NOT_THERE), _opened(folder, file) as (within, last):
        if _is_same_in(within, last, entry):
            os.unlink(last, dir_fd=within)
            return True
    return False


@contextmanager
def _place_in_errors(folder: Path, file: str) -> Iterator[None]:
    """Errors of the operating system, which may hold a name alone, get the whole path."""
    try:
        yield
    except OSError as error:
        place = Path(error.filename2 or error.filename or "")
        is_above = isinstance(error, LinkFound) and file.startswith(f"{place}/")
        path = place if place.is_absolute() else folder / (place if is_above else file)
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _opened(folder: Path, file: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Opens the folder of ``file`` and yields it with the file's own name in it.

    Others may be able to write to ``folder``, so that a link below it could lead a write to somewhere else.
    No link below ``folder`` is followed: ``LinkFound`` names it.
    """
    *names, last = file.split("/")
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    with folder_at(folder, names, make=make) as within:
        yield within, last


def _remove_unfinished(folder: Path, files: Iterable[str]) -> None:
    """Removes unfinished downloads of these files that an interrupted pull left in the folder."""
    for file in sorted(files):
        with suppress(*_NOT_THERE), _opened(folder, file) as (within, last):
            name = re.compile(re.escape(_UNFINISHED) + "[0-9a-f]{16}-" + re.escape(last))
            for leftover in filter(name.fullmatch, names_in(within)):
                os.unlink(leftover, dir_fd=within)


def _fetch(store: Store, source: str, entry: PublishedFile, folder: Path, file: str) -> None:
    """Downloads the file beside its place, under the name that ``_unfinished`` gives it. Resumes a download
    that broke off.
    """
    with _opened(folder, file, make=True) as (within, last):
        unfinished = _unfinished(entry, last)
        room = memoryview(bytearray(min(_CHUNK_BYTES, entry.num_bytes)))
        with _resumed(within, unfinished) as download:
            while (done := download.tell()) < entry.num_bytes:
                try:
                    count = store.get_range(source, done, room[: entry.num_bytes - done])
                except Missing:
                    raise _Changed(f"{source} is gone") from None
                if not count:
                    break
                write_all(download, room[:count])
        if not _is_same_in(within, unfinished, entry):
            os.unlink(unfinished, dir_fd=within)
            raise _Changed(f"{source} is not what its manifest says")


def _unfinished(entry: PublishedFile, last: str) -> str:
    """The name contains the digest, so that a download of another version is never resumed."""
    return f"{_UNFINISHED}{entry.sha256[:16]}-{last}"


def _resumed(within: int, name: str) -> FileIO:
    """Opens an unfinished download to append to it. Its name can be foreseen: what is there and is not a file
    of this user alone was put there by somebody else, and is replaced.
    """
    with suppress(FileNotFoundError):
        if not _is_ours_alone(os.stat(name, dir_fd=within, follow_symlinks=False)):
            os.unlink(name, dir_fd=within)
    return file_in(within, name, "a")


def _is_same(folder: Path, file: str, entry: PublishedFile) -> bool:
    """Whether the file lies inside the folder, behind no link, and has the bytes of the entry."""
    try:
        with _opened(folder, file) as (within, last):
            return _is_same_in(within, last, entry)
    except _NOT_THERE:
        return False


def _is_same_in(within: int, name: str, entry: PublishedFile) -> bool:
    with suppress(*_NOT_THERE), file_in(within, name) as file:
        if os.fstat(file.fileno()).st_size == entry.num_bytes:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    return False


def _is_stored(store: Store, name: str, entry: PublishedFile) -> bool:
    """Whether the store has the file at the right size; its bytes are not read."""
    try:
        return store.size(name) == entry.num_bytes
    except StoreError:
        return False


def _entry(data: bytes | memoryview) -> PublishedFile:
    return PublishedFile(num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _encode(entries: Mapping[str, PublishedFile]) -> bytes:
    files = {file: asdict(entry) for file, entry in sorted(entries.items())}
    return json.dumps({"schema_version": SCHEMA_VERSION, "files": files}, indent=1).encode() + b"\n"


def _read_manifest(store: Store, name: str) -> dict[str, PublishedFile]:
    place = f"reports/{name}/{MANIFEST}"
    try:
        return _decode(get_bounded(store, place, most_bytes=_MOST_MANIFEST_BYTES), place)
    except Missing:
        return {}
    except TooLarge as error:
        raise PullError(f"{place} {error}; make the report again with `longhaul report`") from None


def _local_manifest(folder: Path) -> dict[str, PublishedFile]:
    """The manifest that a pull of this user left. Raises ``PullError`` if a file of this user is none."""
    with suppress(OSError), _opened(folder, MANIFEST) as (within, last), file_in(within, last) as file:
        if not _is_ours_alone(os.fstat(file.fileno())):
            return {}
        with suppress(PullError):
            return _decode(file.read(_MOST_MANIFEST_BYTES), MANIFEST)
        _refuse_to_replace(folder, MANIFEST)
    return {}


def _is_ours_alone(found: os.stat_result) -> bool:
    """Whether it is a file of this user under one name. Anything else was put there by somebody else."""
    return S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _decode(data: bytes, where: str) -> dict[str, PublishedFile]:
    try:
        found = json.loads(data)
        version = found["schema_version"]
        entries = {
            file: PublishedFile(num_bytes=int(entry["num_bytes"]), sha256=str(entry["sha256"]))
            for file, entry in found["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise PullError(f"{where} is no manifest; make the report again with `longhaul report`") from None
    if version != SCHEMA_VERSION:
        raise PullError(f"{where} has schema_version {version!r}, expected {SCHEMA_VERSION}")
    if bad := [file for file in entries if not is_name(file)]:
        raise PullError(f"{where} names {bad[0]!r}, which would not stay in the folder")
    if not all(entry.num_bytes >= 0 and _DIGEST.fullmatch(entry.sha256) for entry in entries.values()):
        raise PullError(
            f"{where} has a size or a digest that is none; make the report again with `longhaul report`"
        )
    return entries


def _write(folder: Path, file: str, data: bytes) -> None:
    with _opened(folder, file, make=True) as (within, last):
        unfinished = _UNFINISHED + last
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=within)
        with file_in(within, unfinished, "x") as opened:
            write_all(opened, memoryview(data))
        os.replace(unfinished, last, src_dir_fd=within, dst_dir_fd=within)


def _other_reports(store: Store) -> str:
    names = reports_of(store)
    return f"; there are {', '.join(names)}" if names else "; `longhaul report` makes one"
