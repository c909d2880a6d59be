"""Publishing writes a report's files to the store, and pulls copies of them into a folder.

Layout: ``reports/<name>/<file>``, and last ``reports/<name>/manifest.json`` with the size and SHA-256 of
every file. Each file is replaced as a whole. A pull that runs while a report is replaced sees files that
don't match the manifest, and starts again with the new manifest.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpointing.stores.contract import Missing, Store, StoreError, is_name

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_CHUNK_BYTES = 8 * 1024 * 1024
_NUM_TRIES = 5
_PAUSE_S = 1.0
# No name in a store begins with a dot, so this prefix can't collide with a published file.
_UNFINISHED = ".unfinished-"
_BEGINNING_OF_DIGEST = "[0-9a-f]" * 16


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
    fetched, unchanged = [], []
    for file, entry in sorted(entries.items()):
        if _is_same(folder / file, entry):
            unchanged.append(file)
        else:
            _fetch(store, f"reports/{name}/{file}", entry, folder / file)
            fetched.append(file)
    removed = [
        file for file in sorted(before.keys() - entries.keys()) if _is_unchanged(folder, file, before[file])
    ]
    for file in removed:
        (folder / file).unlink()
    for leftover in _unfinished(folder, sorted({*before, *entries})):
        leftover.unlink()
    _write(folder / MANIFEST, _encode(entries))
    num_bytes = sum(entries[file].num_bytes for file in fetched)
    return Pulled(
        fetched=tuple(fetched), unchanged=tuple(unchanged), removed=tuple(removed), num_bytes=num_bytes
    )


def _is_unchanged(folder: Path, file: str, entry: PublishedFile) -> bool:
    """Whether the file is unchanged since it was fetched and lies inside the folder. Files that the user
    changed, or replaced by a link, are kept.
    """
    return _is_inside(folder, folder / file) and _is_same(folder / file, entry)


def _is_inside(folder: Path, path: Path) -> bool:
    return path.parent.resolve() == folder.resolve() / path.parent.relative_to(folder)


def _unfinished(folder: Path, files: Iterable[str]) -> Iterator[Path]:
    """Yields unfinished downloads of these files that an interrupted pull left in the folder."""
    for path in (folder / file for file in files):
        if _is_inside(folder, path):
            yield from path.parent.glob(f"{_UNFINISHED}{_BEGINNING_OF_DIGEST}-{path.name}")


def _fetch(store: Store, source: str, entry: PublishedFile, target: Path) -> None:
    """Downloads the file, resuming an unfinished download. Its name contains the digest, so that a download
    of another version is never resumed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{_UNFINISHED}{entry.sha256[:16]}-{target.name}")
    room = memoryview(bytearray(min(_CHUNK_BYTES, entry.num_bytes)))
    with open(unfinished, "ab", opener=_no_link) as file:
        while (done := file.tell()) < entry.num_bytes:
            try:
                count = store.get_range(source, done, room[: entry.num_bytes - done])
            except Missing:
                raise _Changed(f"{source} is gone") from None
            if not count:
                break
            file.write(room[:count])
    if not _is_same(unfinished, entry):
        unfinished.unlink()
        raise _Changed(f"{source} is not what its manifest says")
    unfinished.replace(target)


def _is_same(path: Path, entry: PublishedFile) -> bool:
    if not path.is_file() or path.stat().st_size != entry.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


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
    try:
        return _decode(store.get(f"reports/{name}/{MANIFEST}"), f"reports/{name}/{MANIFEST}")
    except Missing:
        return {}


def _local_manifest(folder: Path) -> dict[str, PublishedFile]:
    try:
        return _decode((folder / MANIFEST).read_bytes(), MANIFEST)
    except (OSError, PullError):
        return {}


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
    return entries


def _write(path: Path, data: bytes) -> None:
    unfinished = path.with_name(_UNFINISHED + path.name)
    with open(unfinished, "wb", opener=_no_link) as file:
        file.write(data)
    unfinished.replace(path)


def _no_link(path: str, flags: int) -> int:
    """Opens without following links. The file's name is predictable and others may be able to write to the
    folder, so that a link placed there could redirect the write.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _other_reports(store: Store) -> str:
    names = reports_of(store)
    return f"; there are {', '.join(names)}" if names else "; `longhaul report` makes one"
