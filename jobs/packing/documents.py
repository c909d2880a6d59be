"""Reads the texts, or the values of a column, in a span of a file, in order, from local or shared disks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from jobs.packing.pieces import InputError, InputSource, SourceKind, TextSpan

_KINDS: dict[str, SourceKind] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_TEXT_BYTES = 2**20
# A line of JSON takes several times its bytes as it is read.
_MOST_LINE_BYTES = 32 * 2**20
_BYTE_ORDER_MARK = "\ufeff"
# A row of messages takes some ten times its bytes as Python's objects.
_BATCH_ROWS = 256
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".tar", ".tgz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text, or a part of one. ``is_end`` is true if the document ends with it.

    Only a large file of plain text comes in several parts. ``where`` is for messages.
    """

    text: str
    is_end: bool
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value stands, for messages: a line that begins at byte ``at``, or row ``at`` of Parquet."""

    path: str
    kind: SourceKind
    at: int

    def __str__(self) -> str:
        if self.kind == "parquet":
            return f"{self.path}: row {self.at + 1:,}"
        return f"{self.path}: line {_line_number(self.path, self.at):,}"


def find_sources(
    inputs: list[Path], column: str, *, is_chat: bool = False, rest: SourceKind | None = None
) -> list[InputSource]:
    """Finds the input files in the order of ``inputs``. The files of a folder are sorted by path.

    Files of unknown kind are of the kind ``rest``. If that is None, ``left_out`` has those in folders.
    """
    paths = [
        path for given in inputs for path in _files(given) if not _is_left_out(path, given, rest, is_chat)
    ]
    _check_once(paths)
    return [_source(path, column, is_chat, rest) for path in paths]


def left_out(inputs: list[Path], rest: SourceKind | None) -> list[Path]:
    """The files in the folders of ``inputs`` that are not read, since nothing tells what is in them."""
    found = [path for given in inputs for path in _files(given) if _is_left_out(path, given, rest, False)]
    return [path for path in found if path.suffix.lower() not in _COMPRESSED]


def _is_left_out(path: Path, given: Path, rest: SourceKind | None, is_chat: bool) -> bool:
    """What a user names is never left out, and neither is what is refused."""
    is_known = path.suffix.lower() in (*_KINDS, *_COMPRESSED)
    return not is_known and rest is None and path != given and not is_chat


def _check_once(paths: list[Path]) -> None:
    """Raises ``InputError`` if a file is there twice, also by a link."""
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        found = path.stat()
        if (other := seen.setdefault((found.st_dev, found.st_ino), path)) is not path:
            raise InputError(f"{path}: is the same file as {other}; name it once, or take the link away")


def texts_of(span: TextSpan, column: str) -> Iterator[Text]:
    """Yields the texts of ``span``, without empty ones. Every ``OSError`` names the file."""
    match span.kind:
        case "text":
            texts = _plain(span)
        case "jsonl":
            texts = _lines(span, column)
        case "parquet":
            texts = _rows(span, column)
    try:
        yield from (text for text in texts if text.text or text.is_end)
    except OSError as error:
        raise OSError(error.errno, error.strerror, span.path) from None


def values_of(span: TextSpan, column: str) -> Iterator[tuple[Place, Any]]:
    """Yields what ``column`` holds in each line or row of ``span``. Every ``OSError`` names the file."""
    try:
        yield from (_values_in_rows if span.kind == "parquet" else _values_in_lines)(span, column)
    except OSError as error:
        raise OSError(error.errno, error.strerror, span.path) from None


def _files(given: Path) -> list[Path]:
    if not given.exists():
        raise InputError(f"{given}: does not exist; give a file or a folder")
    if given.is_file():
        return [given]
    below = [path for path in given.rglob("*") if not _is_hidden(path, given)]
    if elsewhere := sorted(path for path in below if path.is_symlink() and not path.is_file()):
        raise InputError(
            f"{elsewhere[0]}: is a link, but not to a file, and is not followed; name the folder that is "
            "meant as an input of its own, and take the link away"
        )
    found = sorted(path for path in below if path.is_file())
    if not found:
        raise InputError(f"{given}: holds no files; give a folder with text, JSONL or Parquet")
    return found


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _source(path: Path, column: str, is_chat: bool, rest: SourceKind | None) -> InputSource:
    suffix = path.suffix.lower()
    if suffix in _COMPRESSED:
        raise InputError(f"{path}: is compressed ({path.suffix}); unpack it first")
    kind = _KINDS.get(suffix, rest)
    if is_chat and kind in (None, "text"):
        raise InputError(
            f"{path}: expected .jsonl or .parquet with conversations; convert it, or take it away"
        )
    if kind is None:
        raise InputError(
            f"{path}: expected {', '.join(_KINDS)}; rename or convert it, or say by --as what is in it"
        )
    try:
        sizes = _row_groups(path, column, is_chat) if kind == "parquet" else (path.stat().st_size,)
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from None
    return InputSource(path=str(path.absolute()), kind=kind, sizes=sizes)


def _row_groups(path: Path, column: str, is_chat: bool) -> tuple[int, ...]:
    with _parquet(path) as file:
        names = file.schema_arrow.names
        if column not in names:
            raise InputError(f"{path}: has no column {column!r} ({', '.join(names)}); name one with --column")
        kind, expected = file.schema_arrow.field(column).type, "lists of messages" if is_chat else "text"
        if not (_holds_messages(kind) if is_chat else _holds_text(kind)):
            raise InputError(
                f"{path}: column {column!r} holds {kind!s:.80}, expected {expected}; name one with --column"
            )
        metadata = file.metadata
        return tuple(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def _holds_text(kind: Any) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _holds_messages(kind: Any) -> bool:
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    return bool(is_list and pyarrow.types.is_struct(kind.value_type))


def _parquet(path: Path) -> Any:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _as_input_error(error, f"{path}: is no whole Parquet file") from None


def _as_input_error(error: Exception, found: str) -> Exception:
    """Turns Arrow's complaints about a file's contents into ``InputError``.

    Arrow also raises ``OSError`` for bad contents. A real system error has an ``errno`` and is returned
    unchanged.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return InputError(f"{found} ({str(error).partition(chr(10))[0]})")


def _plain(span: TextSpan) -> Iterator[Text]:
    """Yields the whole lines that begin in the span, ``_TEXT_BYTES`` at a time."""
    data, begin = bytearray(), span.start
    for at, part in _parts_in(span):
        begin = begin if data else at
        data += part
        if len(data) >= _TEXT_BYTES:
            cut = _whole_characters(data)
            yield _text(data[:cut], span, begin, is_end=False)
            begin += cut
            del data[:cut]
    yield _text(data, span, begin, is_end=span.is_last)


def _text(data: bytearray, span: TextSpan, begin: int, *, is_end: bool) -> Text:
    where = f"{span.path}: the text at byte {begin:,}"
    return Text(text=_decoded(bytes(data), span.path, begin), is_end=is_end, where=where)


def _whole_characters(data: bytearray) -> int:
    """How many bytes there are before a last character of UTF-8 that is not whole."""
    for back in range(1, 4):
        byte = data[-back]
        if byte >= 0xC0:
            is_whole = back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
            return len(data) if is_whole else len(data) - back
        if byte < 0x80:
            break
    return len(data)


def _lines(span: TextSpan, column: str) -> Iterator[Text]:
    for at, line in _lines_in(span):
        if not line.strip():
            continue
        where = f"{span.path}: the line at byte {at:,}"
        try:
            record = json.loads(_decoded(line, span.path, at))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON ({error}); mend or remove it") from None
        if text := _text_in(record, column, where):
            yield Text(text=text, is_end=True, where=where)


def _values_in_lines(span: TextSpan, column: str) -> Iterator[tuple[Place, Any]]:
    for at, line in _lines_in(span):
        if not line.strip():
            continue
        place = Place(path=span.path, kind=span.kind, at=at)
        try:
            record = json.loads(_decoded(line, span.path, at))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not JSON ({error}); mend or remove it") from None
        yield place, _held(record, column, place)


def _values_in_rows(span: TextSpan, column: str) -> Iterator[tuple[Place, Any]]:
    with _parquet(Path(span.path)) as file:
        groups = range(span.start, span.end)
        at = sum(file.metadata.row_group(number).num_rows for number in range(span.start))
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[column]):
                for value in batch.column(0).to_pylist():
                    yield Place(path=span.path, kind=span.kind, at=at), value
                    at += 1
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _as_input_error(error, f"{span.path}: row group {span.start:,} is not whole") from None


def _line_number(path: str, at: int) -> int:
    """The number of the line that begins at byte ``at``."""
    number = 1
    with Path(path).open("rb") as file:
        while at and (data := file.read(min(at, _TEXT_BYTES))):
            number += data.count(b"\n")
            at -= len(data)
    return number


def _held(record: object, column: str, where: object) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where} is not an object; expected one with {column!r} in each line")
    if column not in record:
        found = ", ".join(record).encode(errors="backslashreplace").decode()
        raise InputError(f"{where} has no {column!r} ({found}); name another with --column")
    return record[column]


def _text_in(record: object, column: str, where: str) -> str | None:
    text = _held(record, column, where)
    if not isinstance(text, str | None):
        raise InputError(f"{where}: {column!r} is {text!r:.40}, expected text")
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        # JSON can spell half of a surrogate pair, which has no UTF-8 form.
        half = error.object[error.start]
        raise InputError(f"{where}: {column!r} has half a character ({half!r}); mend or remove it") from None
    return text


def _rows(span: TextSpan, column: str) -> Iterator[Text]:
    with _parquet(Path(span.path)) as file:
        for group in range(span.start, span.end):
            texts = _column(file, group, column, span.path)
            where = f"{span.path}: row group {group:,}"
            yield from (Text(text=text, is_end=True, where=where) for text in texts if text)


def _column(file: Any, group: int, column: str, path: str) -> list[str | None]:
    try:
        texts: list[str | None] = file.read_row_group(group, columns=[column]).column(column).to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _as_input_error(error, f"{path}: row group {group:,} is not whole, or not UTF-8") from None
    return texts


def _lines_in(span: TextSpan) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines that begin in the span, each with its byte offset in the file."""
    line, begin = bytearray(), span.start
    for at, part in _parts_in(span):
        begin = begin if line else at
        line += part
        if len(line) > _MOST_LINE_BYTES:
            raise InputError(
                f"{span.path}: the line at byte {begin:,} has more than {_MOST_LINE_BYTES:,} bytes; split or "
                "remove it"
            )
        if line.endswith(b"\n"):
            yield begin, bytes(line)
            line.clear()
    if line:
        yield begin, bytes(line)


def _parts_in(span: TextSpan) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines that begin in the span, in parts of at most ``_TEXT_BYTES``."""
    with Path(span.path).open("rb") as file:
        at, is_begin = span.start, True
        if at:
            # Start one byte earlier: a line that begins exactly here would be skipped as the rest of another.
            file.seek(at - 1)
            at -= 1
            while part := file.readline(_TEXT_BYTES):
                at += len(part)
                if part.endswith(b"\n"):
                    break
        while (at < span.end or not is_begin) and (part := file.readline(_TEXT_BYTES)):
            yield at, part
            at += len(part)
            is_begin = part.endswith(b"\n")


def _decoded(data: bytes, path: str, at: int) -> str:
    try:
        text = data.decode()
        return text if at else text.removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {at + error.start:,} is not UTF-8; convert it first, such as with iconv"
        ) from None
