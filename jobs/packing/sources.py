"""Finds the input files, and what is in each."""

import glob
from operator import attrgetter
from pathlib import Path

from jobs.packing.formats import columns, csv_rows, json_array
from jobs.packing.formats.naming import KINDS, inner_suffix, is_refused_wrapping
from jobs.packing.formats.unpacked import num_bytes
from jobs.packing.pieces import InputError, InputSource, SourceKind

_WILD = "*?["
_OF_CHAT: tuple[SourceKind, ...] = ("json", "jsonl", "parquet", "arrow")


def named(inputs: list[Path]) -> list[Path]:
    """The inputs, with patterns such as ``data/*.jsonl`` replaced by the files and folders that fit them."""
    return [path for given in inputs for path in _fitting(given)]


def find_sources(
    inputs: list[Path], column: str, *, is_chat: bool = False, rest: SourceKind | None = None
) -> list[InputSource]:
    """Finds the input files in the order of ``inputs``. The files of a folder are sorted by path.

    Files of unknown kind are of the kind ``rest``. If that is None, ``left_out`` has those in folders.
    """
    paths = [
        path
        for given in inputs
        for path in _files(given)
        if is_chat or not _is_left_out(path, given, column, rest)
    ]
    _check_once(paths)
    return [_source(path, column, is_chat, rest) for path in paths]


def left_out(inputs: list[Path], column: str, rest: SourceKind | None) -> list[Path]:
    """The files in the folders of ``inputs`` that are not read, since nothing tells what is in them."""
    return [path for given in inputs for path in _files(given) if _is_left_out(path, given, column, rest)]


def _fitting(given: Path) -> list[Path]:
    if given.exists() or not any(mark in str(given) for mark in _WILD):
        return [given]
    # Path.glob takes no absolute pattern, and finds hidden files.
    found = [Path(path) for path in sorted(glob.glob(str(given), recursive=True))]  # noqa: PTH207 - see above
    if not found:
        raise InputError(f"{given}: fits no file; give a file, a folder or another pattern")
    return found


def _is_left_out(path: Path, given: Path, column: str, rest: SourceKind | None) -> bool:
    """What a user names is never left out, and neither is what is refused."""
    if path == given or rest is not None or is_refused_wrapping(path):
        return False
    return _kind(path, column, rest) is None


def _kind(path: Path, column: str, rest: SourceKind | None) -> SourceKind | None:
    """What is in the file, by its name; JSON may be in lines, or be none that holds data."""
    kind = KINDS.get(inner_suffix(path))
    if kind == "json" or (kind is None and rest == "json"):
        try:
            kind = json_array.json_kind(path, column)
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    return kind or rest


def _check_once(paths: list[Path]) -> None:
    """Raises ``InputError`` if a file is there twice, also by a link."""
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        found = path.stat()
        if (other := seen.setdefault((found.st_dev, found.st_ino), path)) is not path:
            raise InputError(f"{path}: is the same file as {other}; name it once, or take the link away")


def _files(given: Path) -> list[Path]:
    if not given.exists():
        raise InputError(f"{given}: does not exist; give a file or a folder")
    if given.is_file():
        return [given]
    try:
        below = [path for path in given.rglob("*") if not _is_hidden(path, given)]
    except RecursionError:
        raise InputError(f"{given}: has too many folders in one another; take them away") from None
    if elsewhere := sorted(path for path in below if path.is_symlink() and not path.is_file()):
        raise InputError(
            f"{elsewhere[0]}: is a link, but not to a file, and is not followed; name the folder that is "
            "meant as an input of its own, and take the link away"
        )
    found = sorted((path for path in below if path.is_file()), key=attrgetter("parts"))
    if not found:
        raise InputError(f"{given}: holds no files; give a folder with text, JSONL or Parquet")
    return found


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.parts[len(root.parts) :])


def _source(path: Path, column: str, is_chat: bool, rest: SourceKind | None) -> InputSource:
    if is_refused_wrapping(path):
        raise InputError(f"{path}: is compressed ({path.suffix}); unpack it first")
    kind = _kind(path, column, rest)
    if is_chat and kind not in _OF_CHAT:
        raise InputError(
            f"{path}: expected JSON, JSONL, Parquet or Arrow with conversations; convert it, or take it away"
        )
    if kind is None:
        raise _unknown(path, column)
    try:
        sizes = _sizes(path, kind, column, is_chat)
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    return InputSource(path=str(path.absolute()), kind=kind, sizes=sizes)


def _unknown(path: Path, column: str) -> InputError:
    if inner_suffix(path) == ".json":
        return InputError(
            f"{path}: expected an array of objects, or an object with {column!r} in each line; name another "
            "column with --column, or convert it"
        )
    return InputError(
        f"{path}: expected {', '.join(KINDS)}; rename or convert it, or say by --as what is in it"
    )


def _sizes(path: Path, kind: SourceKind, column: str, is_chat: bool) -> tuple[int, ...]:
    match kind:
        case "parquet" | "arrow":
            return columns.group_sizes(path, kind, column, of_messages=is_chat)
        case "json":
            return json_array.groups(path)
        case "csv":
            return csv_rows.groups(path, column)
        case _:
            return (num_bytes(path),)
