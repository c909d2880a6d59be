"""A JSON file that is one array of objects, which is read without ever being whole in memory."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

from jobs.packing.formats.groups import groups_of
from jobs.packing.formats.lines import MOST_LINE_BYTES, decoded, lines_in, whole_characters
from jobs.packing.formats.unpacked import num_bytes, opened
from jobs.packing.pieces import InputError, InputFile, TextSpan

_READ_BYTES = 2**20
_HEAD_BYTES = 2**16
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()


def json_kind(path: InputFile, column: str) -> Literal["json", "jsonl"] | None:
    """Whether a JSON file is an array of objects, or objects in lines. None if it is neither.

    A single object is data only if it has ``column``: others are settings, such as ``dataset_info.json``.
    """
    with opened(path) as file:
        head = file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"["):
        return "json" if head[1:].lstrip()[:1] in (b"{", b"]") else None
    return "jsonl" if head.startswith(b"{") and _is_in_lines(path, column) else None


def _is_in_lines(path: InputFile, column: str) -> bool:
    span = TextSpan(path=path, kind="jsonl", start=0, end=2**63, is_last=True)
    lines = ((at, line) for at, line in lines_in(span) if line.strip())
    at, first = next(lines)
    try:
        record = json.loads(decoded(first, path, at))
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and (column in record or next(lines, None) is not None)


def groups(path: InputFile) -> tuple[int, ...]:
    """The sizes of groups of objects. Raises ``InputError`` if the file is no array."""
    size = num_bytes(path)
    span = TextSpan(path=path, kind="json", start=0, end=size, is_last=True)
    return groups_of((begin for begin, _ in objects_in(span)), size)


def objects_in(span: TextSpan) -> Iterator[tuple[int, Any]]:
    """Yields the values of the array that begin in the span, each with its byte offset in the file."""
    with opened(span.path, span.start) as file:
        text = _Window(file, span.path, span.start)
        if not span.start:
            text.take_mark("[", "a JSON array begins")
            if text.next() == "]":
                text.take_mark("]", "a JSON array ends")
                return text.check_end()
        while True:
            text.next()
            if text.at >= span.end and not span.is_last:
                return None
            yield text.at, text.value()
            if text.next() != ",":
                break
            text.take_mark(",", "")
        text.take_mark("]", "a JSON array goes on or ends")
        text.check_end()
    return None


class _Window:
    """The characters of a file from byte ``at`` on, of which a few are held."""

    def __init__(self, file: BinaryIO, path: InputFile, at: int) -> None:
        self._file, self._path = file, path
        self.at = at
        self._read = at
        self._text, self._index, self._rest = "", 0, b""

    def next(self) -> str:
        """The next character that is not blank; none at the file's end."""
        while True:
            while self._index < len(self._text) and self._text[self._index] in _BLANK:
                self._index += 1
                self.at += 1
            if self._index < len(self._text) or not self._more():
                return self._text[self._index : self._index + 1]

    def take_mark(self, mark: str, what: str) -> None:
        if (found := self.next()) != mark:
            found = repr(found) if found else "the end of the file"
            raise InputError(
                f"{self._path}: byte {self.at:,} is {found:.20}, expected {mark!r}, where {what}; mend it"
            )
        self._index += 1
        self.at += 1

    def check_end(self) -> None:
        if found := self.next():
            raise InputError(
                f"{self._path}: byte {self.at:,} is {found!r}, behind the end of the array; remove it"
            )

    def value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._index)
            except json.JSONDecodeError as error:
                is_long = len(self._text) - self._index > MOST_LINE_BYTES
                if is_long or not self._more():
                    more = f", or has more than {MOST_LINE_BYTES:,} characters" if is_long else ""
                    raise self._wrong(f"is not JSON ({error.msg}){more}") from None
            except (ValueError, RecursionError) as error:
                raise self._wrong(f"is not JSON ({error})") from None
            else:
                self.at += len(self._text[self._index : end].encode())
                self._index = end
                return value

    def _wrong(self, what: str) -> InputError:
        return InputError(f"{self._path}: the record at byte {self.at:,} {what}; mend or remove it")

    def _more(self) -> bool:
        """Reads as much as is held, so that a long value is tried only a few times."""
        data = self._file.read(max(_READ_BYTES, len(self._text) - self._index))
        whole = self._rest + data
        cut = whole_characters(whole) if data else len(whole)
        begin = self._read - len(self._rest)
        text = decoded(whole[:cut], self._path, begin)
        if not begin:
            self.at += len(whole[:cut]) - len(text.encode())  # of a byte-order mark
        self._text = self._text[self._index :] + text
        self._index, self._rest = 0, whole[cut:]
        self._read += len(data)
        return bool(data)
