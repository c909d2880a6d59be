"""Reads the texts, or the values of a column, in a span of a file, in order, from local or shared disks.

Arrow is imported where it reads: it takes longer to load than many an input to pack.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.packing.formats import csv_rows, json_array
from jobs.packing.formats.lines import (
    PART_BYTES,
    decoded,
    first_bytes,
    line_number,
    lines_in,
    parts_in,
    whole_characters,
)
from jobs.packing.hold_out import HEAD_BYTES
from jobs.packing.pieces import InputError, InputFile, SourceKind, TextSpan


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
    """Where a value stands, for messages: a line or record that begins at byte ``at``, or row ``at`` of a
    group of rows.
    """

    path: InputFile
    kind: SourceKind
    at: int
    group: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "parquet":
                from jobs.packing.formats import columns

                before = columns.num_rows_before(self.path, self.group)
                return f"{self.path}: row {before + self.at + 1:,}"
            case "arrow":
                from jobs.packing.formats import columns

                return f"{columns.group_name(self.path, self.kind, self.group)}, row {self.at + 1:,}"
            case "json":
                return f"{self.path}: the record at byte {self.at:,}"
            case _:
                return f"{self.path}: line {line_number(self.path, self.at):,}"


def texts_of(span: TextSpan, column: str) -> Iterator[Text]:
    """Yields the texts of ``span``, without empty ones. Every ``OSError`` names the file."""
    try:
        yield from (text for text in _texts(span, column) if text.text or text.is_end)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(span.path)) from None


def head_of(span: TextSpan, text: Text) -> bytes:
    """The first ``HEAD_BYTES`` bytes of the document of which ``text`` is the first part in ``span``.

    They are the same in whichever pieces the document is packed. Every ``OSError`` names the file.
    """
    if span.kind != "text" or (text.is_end and not span.start):
        return text.text[:HEAD_BYTES].encode()[:HEAD_BYTES]
    try:
        return first_bytes(span.path, HEAD_BYTES)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(span.path)) from None


def values_of(span: TextSpan, column: str) -> Iterator[tuple[Place, Any]]:
    """Yields what ``column`` holds in each line or row of ``span``. Every ``OSError`` names the file."""
    try:
        match span.kind:
            case "parquet" | "arrow":
                from jobs.packing.formats import columns

                for group, row, value in columns.values_in(span, column):
                    yield Place(path=span.path, kind=span.kind, at=row, group=group), value
            case "json":
                for at, record in json_array.objects_in(span):
                    place = Place(path=span.path, kind=span.kind, at=at)
                    yield place, _held(record, column, place)
            case _:
                yield from _values_in_lines(span, column)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(span.path)) from None


def _texts(span: TextSpan, column: str) -> Iterator[Text]:
    match span.kind:
        case "text":
            yield from _plain(span)
        case "jsonl":
            yield from _lines(span, column)
        case "json":
            for at, record in json_array.objects_in(span):
                where = f"{span.path}: the record at byte {at:,}"
                yield _document(_text_in(record, column, where), where)
        case "csv":
            for at, field in csv_rows.fields_in(span, column):
                yield _document(field, f"{span.path}: the row at byte {at:,}")
        case "parquet" | "arrow":
            from jobs.packing.formats import columns

            for group, _, value in columns.values_in(span, column):
                yield _document(value, columns.group_name(span.path, span.kind, group))


def _document(text: str | None, where: str) -> Text:
    return Text(text=text or "", is_end=bool(text), where=where)


def _plain(span: TextSpan) -> Iterator[Text]:
    """Yields the whole lines that begin in the span, ``PART_BYTES`` at a time."""
    data, begin = bytearray(), span.start
    for at, part in parts_in(span):
        begin = begin if data else at
        data += part
        if len(data) >= PART_BYTES:
            cut = whole_characters(data)
            yield _text(data[:cut], span, begin, is_end=False)
            begin += cut
            del data[:cut]
    yield _text(data, span, begin, is_end=span.is_last)


def _text(data: bytearray, span: TextSpan, begin: int, *, is_end: bool) -> Text:
    where = f"{span.path}: the text at byte {begin:,}"
    return Text(text=decoded(bytes(data), span.path, begin), is_end=is_end, where=where)


def _lines(span: TextSpan, column: str) -> Iterator[Text]:
    for at, line in lines_in(span):
        if not line.strip():
            continue
        where = f"{span.path}: the line at byte {at:,}"
        try:
            record = json.loads(decoded(line, span.path, at))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON ({error}); mend or remove it") from None
        if text := _text_in(record, column, where):
            yield Text(text=text, is_end=True, where=where)


def _values_in_lines(span: TextSpan, column: str) -> Iterator[tuple[Place, Any]]:
    for at, line in lines_in(span):
        if not line.strip():
            continue
        place = Place(path=span.path, kind=span.kind, at=at)
        try:
            record = json.loads(decoded(line, span.path, at))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not JSON ({error}); mend or remove it") from None
        yield place, _held(record, column, place)


def _held(record: object, column: str, where: object) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where} is not an object; expected one with {column!r} in each line")
    if column not in record:
        found = ", ".join(record).encode(errors="backslashreplace").decode()
        raise InputError(f"{where} has no {column!r} ({found:.200}); name another with --column")
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
