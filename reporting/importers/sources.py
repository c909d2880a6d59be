"""This module finds the files to import below the paths that a user names, and orders them. Pure."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_FILES = 20_000
_DEEPEST = 12
_MEASURED_FIRST = (".json", ".xlsx", ".csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSource:
    """One thing to import. ``label`` names it without its place on this machine; several ``paths`` are the
    files of one event log.
    """

    label: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadSource:
    """A file or folder from which nothing was imported, with the reason."""

    label: str
    reason: str


def find_sources(paths: Sequence[Path]) -> tuple[list[ImportSource], list[UnreadSource]]:
    """Returns single results before tables. A table often repeats the results beside it, and the first
    occurrence counts.
    """
    files: dict[Path, str] = {}
    unread: list[UnreadSource] = []
    for path in paths:
        found = dict(_files_at(path, unread))
        files |= {file: label for file, label in found.items() if file not in files}
    if len(files) > MOST_FILES:
        unread.append(
            UnreadSource(label=str(paths[0]), reason=f"more than {MOST_FILES:,} files: only the first")
        )
    logs: dict[Path, list[Path]] = {}
    sources = []
    for file, label in list(files.items())[:MOST_FILES]:
        if is_log(file):
            logs.setdefault(file.parent, []).append(file)
        else:
            sources.append(ImportSource(label=label, paths=(file,)))
    for parts in logs.values():
        folder = files[parts[0]].rpartition("/")[0]
        sources.append(ImportSource(label=f"{folder}/events", paths=tuple(sorted(parts))))
    return sorted(sources, key=_sort_key), unread


def _files_at(path: Path, unread: list[UnreadSource]) -> Iterator[tuple[Path, str]]:
    place = path.resolve()
    if place.is_file():
        yield place, f"{place.parent.name}/{place.name}" if place.parent.name else place.name
    elif not place.is_dir():
        unread.append(UnreadSource(label=str(path), reason="there is no such file or folder"))
    elif _is_store(place):
        reason = "a store of Longhaul, which needs no import: give it to report or compare"
        unread.append(UnreadSource(label=str(path), reason=reason))
    else:
        found = list(_files_below(place, unread))
        if not found:
            expected = "JSON, CSV, xlsx or TensorBoard event files"
            unread.append(
                UnreadSource(label=str(path), reason=f"nothing to import in it: expected {expected}")
            )
        yield from found


def _is_store(folder: Path) -> bool:
    """Whether the folder has sweeps or runs as our stores have them."""
    ours = ("sweeps/*/sweep.json", "runs/*/parts", "runs/*/gen")
    return any(next(folder.glob(pattern), None) for pattern in ours)


def _files_below(folder: Path, unread: list[UnreadSource]) -> Iterator[tuple[Path, str]]:
    def add_error(error: OSError) -> None:
        unread.append(UnreadSource(label=str(error.filename), reason=str(error.strerror)))

    num_found = 0
    for directory, folders, names in os.walk(folder, onerror=add_error):
        here = Path(directory).relative_to(folder)
        if folders and len(here.parts) >= _DEEPEST:
            reason = f"more than {_DEEPEST} folders deep: what lies in it is not read"
            unread.append(UnreadSource(label=(Path(folder.name) / here).as_posix(), reason=reason))
            folders.clear()
        folders.sort()
        for name in sorted(names):
            path, label = folder / here / name, (Path(folder.name) / here / name).as_posix()
            # Only regular files: reading a pipe of such a name would never end.
            if num_found > MOST_FILES or not _is_wanted(path) or not path.is_file():
                continue
            # Whoever may write here could have the user read, and store, what only the user can read.
            if not path.resolve().is_relative_to(folder):
                reason = "a link to somewhere else, which is not followed: name what it leads to"
                unread.append(UnreadSource(label=label, reason=reason))
                continue
            num_found += 1
            yield path, label


def _is_wanted(path: Path) -> bool:
    """Whether a file of this name is read. Names with ``~$`` are Excel's own lock files."""
    is_ours = path.suffix.lower() in _MEASURED_FIRST or is_log(path)
    return is_ours and not path.name.startswith(("~$", "."))


def is_log(path: Path) -> bool:
    return ".tfevents." in path.name


def _sort_key(source: ImportSource) -> tuple[int, str]:
    suffix = source.paths[0].suffix.lower()
    known = suffix in _MEASURED_FIRST and not is_log(source.paths[0])
    return (_MEASURED_FIRST.index(suffix) if known else len(_MEASURED_FIRST), source.label)
