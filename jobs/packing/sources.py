"""Finds the input files, and what is in each."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePath

from checkpointing.stores.contract import is_name
from jobs.packing.formats import csv_rows, json_array
from jobs.packing.formats.naming import KINDS, inner_suffix, is_refused_wrapping
from jobs.packing.formats.unpacked import as_stored, num_bytes
from jobs.packing.inputs.patterns import fits
from jobs.packing.inputs.splits import TELLING, Wanted, split_of
from jobs.packing.inputs.stored_inputs import WILD, StoredFolder, find_objects, name_refusal
from jobs.packing.pieces import InputError, InputFile, InputSource, SourceKind, Split, StoredObject

Found = Path | StoredObject
_OF_CHAT: tuple[SourceKind, ...] = ("json", "jsonl", "parquet", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFiles:
    """The files of one split of a data set, and how many the others have."""

    split: Split
    files: tuple[Found, ...]


Given = Found | StoredFolder | SplitFiles


def named(inputs: Sequence[Path | str]) -> list[Given]:
    """The inputs, with patterns such as ``data/*.jsonl`` replaced by the files and folders that fit them.

    A ``str`` is the URL of a store.
    """
    return [
        found
        for given in inputs
        for found in (find_objects(given) if isinstance(given, str) else _fitting(given))
    ]


def in_split(given: Given, wanted: Wanted) -> Given:
    """Of a data set with splits the files of the one that is wanted; of anything else all."""
    if isinstance(given, SplitFiles | StoredObject) or (isinstance(given, Path) and not given.is_dir()):
        return given
    folder = str(given).removesuffix("/")
    # To list a large folder takes long.
    is_told = isinstance(given, StoredFolder) or any((given / name).is_file() for name in TELLING)
    files = {str(path).removeprefix(f"{folder}/"): path for path in (_files(given) if is_told else ())}

    def read(name: str, most_bytes: int) -> bytes:
        try:
            with as_stored(files[name]) as file:
                return file.read(most_bytes + 1)
        except OSError as error:
            raise InputError(f"{files[name]}: can't be read ({error.strerror or error})") from None

    split = split_of(folder, [*files], read, wanted)
    if split is None:
        return given
    return SplitFiles(split=split, files=tuple(files[name] for name in split.files))


def find_sources(
    inputs: Sequence[Given], column: str, *, is_chat: bool = False, rest: SourceKind | None = None
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


def left_out(inputs: Sequence[Given], column: str, rest: SourceKind | None) -> list[Found]:
    """The files in the folders of ``inputs`` that are not read, since nothing tells what is in them."""
    return [path for given in inputs for path in _files(given) if _is_left_out(path, given, column, rest)]


def _fitting(given: Path) -> Sequence[Path]:
    try:
        is_there = given.exists()
    except OSError as error:
        raise InputError(
            f"{str(given)[:80]}...: can't be looked for ({error.strerror}); name another"
        ) from None
    if is_there or not any(mark in str(given) for mark in WILD):
        return [given]
    if "**" in given.parts:
        found = _fitting_below(given.parts)
    else:
        # Path.glob takes no absolute pattern, and finds hidden files.
        found = [Path(path) for path in sorted(glob.glob(str(given)))]  # noqa: PTH207 - see above
    if not found:
        raise InputError(f"{given}: fits no file; give a file, a folder or another pattern")
    return found


def _fitting_below(pattern: Sequence[str]) -> list[Path]:
    """What fits, and nothing twice: of a folder that fits, what is below is not named again.

    Links to folders are not followed, as ``glob`` does: two of them to their own folder never end.
    """
    first = next(number for number, part in enumerate(pattern) if any(mark in part for mark in WILD))
    root = Path(*pattern[:first])
    fitting = {path for path in _below(root) if fits(pattern[first:], path.parts[len(root.parts) :])}
    return sorted((path for path in fitting if fitting.isdisjoint(path.parents)), key=str)


def _is_left_out(path: Found, given: Given, column: str, rest: SourceKind | None) -> bool:
    """What a user names is never left out, and neither is what is refused."""
    if path == given or rest is not None or is_refused_wrapping(path):
        return False
    return _kind(path, column, rest) is None


def _kind(path: Found, column: str, rest: SourceKind | None) -> SourceKind | None:
    """What is in the file, by its name; JSON may be in lines, or be none that holds data."""
    kind = KINDS.get(inner_suffix(path))
    if (kind or rest) and isinstance(path, StoredObject) and not is_name(path.name):
        raise name_refusal(path)
    if kind == "json" or (kind is None and rest == "json"):
        try:
            kind = json_array.json_kind(_as_named(path), column)
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    return kind or rest


def _as_named(path: Found) -> InputFile:
    return path if isinstance(path, StoredObject) else str(path)


def _check_once(paths: Sequence[Found]) -> None:
    """Raises ``InputError`` if a file is there twice, also by a link."""
    seen: dict[object, Found] = {}
    for path in paths:
        if (other := seen.setdefault(_identity(path), path)) is not path:
            raise InputError(f"{path}: is the same file as {other}; name it once, or take the link away")


def _identity(path: Found) -> object:
    if isinstance(path, StoredObject):
        return str(path)
    found = path.stat()
    return found.st_dev, found.st_ino


def _files(given: Given) -> Sequence[Found]:
    match given:
        case StoredObject():
            return [given]
        case StoredFolder():
            return given.objects
        case SplitFiles():
            return given.files
        case _:
            return _local_files(given)


def _local_files(given: Path) -> list[Path]:
    if not given.exists():
        raise InputError(f"{given}: does not exist; give a file or a folder")
    if given.is_file():
        return [given]
    below = _below(given)
    if elsewhere := sorted(path for path in below if path.is_symlink() and not path.is_file()):
        raise InputError(
            f"{elsewhere[0]}: is a link, but not to a file, and is not followed; name the folder that is "
            "meant as an input of its own, and take the link away"
        )
    found = sorted((path for path in below if path.is_file()), key=attrgetter("parts"))
    if not found:
        raise InputError(f"{given}: holds no files; give a folder with text, JSONL or Parquet")
    return found


def _below(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.rglob("*") if not _is_hidden(path, folder)]
    except RecursionError:
        raise InputError(f"{folder}: has too many folders in one another; take them away") from None


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.parts[len(root.parts) :])


def _source(path: Found, column: str, is_chat: bool, rest: SourceKind | None) -> InputSource:
    if is_refused_wrapping(path):
        raise InputError(f"{path}: is compressed ({PurePath(str(path)).suffix}); unpack it first")
    kind = _kind(path, column, rest)
    if is_chat and kind not in _OF_CHAT:
        raise InputError(
            f"{path}: expected JSON, JSONL, Parquet or Arrow with conversations; convert it, or take it away"
        )
    if kind is None:
        raise _unknown(path, column)
    try:
        sizes = _sizes(_as_named(path), kind, column, is_chat)
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    file = path if isinstance(path, StoredObject) else str(path.absolute())
    return InputSource(path=file, kind=kind, sizes=sizes)


def _unknown(path: Found, column: str) -> InputError:
    if inner_suffix(path) == ".json":
        return InputError(
            f"{path}: expected an array of objects, or an object with {column!r} in each line; name another "
            "column with --column, or convert it"
        )
    return InputError(
        f"{path}: expected {', '.join(KINDS)}; rename or convert it, or say by --as what is in it"
    )


def _sizes(path: InputFile, kind: SourceKind, column: str, is_chat: bool) -> tuple[int, ...]:
    match kind:
        case "parquet" | "arrow":
            from jobs.packing.formats import columns

            return columns.group_sizes(path, kind, column, of_messages=is_chat)
        case "json":
            return json_array.groups(path)
        case "csv":
            return csv_rows.groups(path, column)
        case _:
            return (num_bytes(path),)
