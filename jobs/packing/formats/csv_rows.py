"""The rows of a CSV file: a header, then as many fields in each row, some on several lines."""

import csv
from collections.abc import Iterator

from jobs.packing.formats.groups import groups_of
from jobs.packing.formats.lines import MOST_LINE_BYTES, decoded, lines_in
from jobs.packing.formats.unpacked import num_bytes
from jobs.packing.pieces import InputError, InputFile, TextSpan


def groups(path: InputFile, column: str) -> tuple[int, ...]:
    """The sizes of groups of rows. Raises ``InputError`` if there is no such column, or a row is broken."""
    size = num_bytes(path)
    span = TextSpan(path=path, kind="csv", start=0, end=size, is_last=True)
    return groups_of((begin for begin, _ in fields_in(span, column)), size) if size else ()


def fields_in(span: TextSpan, column: str) -> Iterator[tuple[int, str]]:
    """Yields what ``column`` holds in each row that begins in the span, with the row's byte offset."""
    begin = TextSpan(path=span.path, kind="csv", start=0, end=1, is_last=False)
    _, names = next(_rows(begin), (0, []))
    if names.count(column) != 1:
        found = "two columns" if column in names else "no column"
        told = f"{', '.join(names):.200}"
        raise InputError(f"{span.path}: has {found} {column!r} ({told}); name one with --column")
    number = names.index(column)
    for at, row in _rows(span):
        if not at:
            continue
        if len(row) != len(names):
            raise InputError(
                f"{span.path}: the row at byte {at:,} has {len(row):,} fields, but the header "
                f"{len(names):,}; mend or remove it"
            )
        yield at, row[number]


def _rows(span: TextSpan) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows that begin in the span, without empty ones. The header's begins at byte 0."""
    csv.field_size_limit(MOST_LINE_BYTES)
    lines = _Lines(span)
    rows = csv.reader(lines, strict=True)
    while True:
        begin = lines.begin_row()
        if begin >= span.end:
            return
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise InputError(
                f"{span.path}: the row at byte {begin:,} is not CSV ({error}); mend or remove it"
            ) from None
        if row is None:
            return
        if row:
            yield begin, row


class _Lines:
    """The lines for a reader of CSV, from the beginning of ``span`` on, with the place of the next one."""

    def __init__(self, span: TextSpan) -> None:
        self._path = span.path
        to_end = TextSpan(path=span.path, kind="csv", start=span.start, end=2**63, is_last=True)
        self._lines = lines_in(to_end)
        self._at = self._begin = span.start

    def begin_row(self) -> int:
        self._begin = self._at
        return self._begin

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        at, line = next(self._lines)
        self._at = at + len(line)
        if self._at - self._begin > MOST_LINE_BYTES:
            raise InputError(
                f"{self._path}: the row at byte {self._begin:,} has more than {MOST_LINE_BYTES:,} bytes; "
                "split it, or look for a quote that is not closed"
            )
        return decoded(line, self._path, at)
