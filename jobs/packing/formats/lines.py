"""The lines of a span of a file, and its characters, with their places."""

from collections.abc import Iterator

from jobs.packing.formats.unpacked import opened
from jobs.packing.pieces import InputError, InputFile, TextSpan

PART_BYTES = 2**20
# A line of JSON takes several times its bytes as it is read.
MOST_LINE_BYTES = 32 * 2**20
_BYTE_ORDER_MARK = "\ufeff"


def lines_in(span: TextSpan) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines that begin in the span, each with its byte offset in the file."""
    line, begin = bytearray(), span.start
    for at, part in parts_in(span):
        begin = begin if line else at
        line += part
        if len(line) > MOST_LINE_BYTES:
            raise InputError(
                f"{span.path}: the line at byte {begin:,} has more than {MOST_LINE_BYTES:,} bytes; split or "
                "remove it"
            )
        if line.endswith(b"\n"):
            yield begin, bytes(line)
            line.clear()
    if line:
        yield begin, bytes(line)


def parts_in(span: TextSpan) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines that begin in the span, in parts of at most ``PART_BYTES``."""
    # Start one byte earlier: a line that begins exactly here would be skipped as the rest of another.
    at, is_begin = max(span.start - 1, 0), True
    with opened(span.path, at) as file:
        if span.start:
            while part := file.readline(PART_BYTES):
                at += len(part)
                if part.endswith(b"\n"):
                    break
        while (at < span.end or not is_begin) and (part := file.readline(PART_BYTES)):
            yield at, part
            at += len(part)
            is_begin = part.endswith(b"\n")


def first_bytes(path: InputFile, num_bytes: int) -> bytes:
    """The first bytes of a file, without a byte-order mark."""
    mark = _BYTE_ORDER_MARK.encode()
    with opened(path) as file:
        return file.read(num_bytes + len(mark)).removeprefix(mark)[:num_bytes]


def decoded(data: bytes, path: object, at: int) -> str:
    """The characters of ``data``, which begin at byte ``at`` of a file, without a byte-order mark."""
    try:
        text = data.decode()
        return text if at else text.removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {at + error.start:,} is not UTF-8; convert it first, such as with iconv"
        ) from None


def whole_characters(data: bytes | bytearray) -> int:
    """How many bytes there are before a last character of UTF-8 that is not whole."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            is_whole = back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
            return len(data) if is_whole else len(data) - back
        if byte < 0x80:
            break
    return len(data)


def line_number(path: InputFile, at: int) -> int:
    """The number of the line that begins at byte ``at``."""
    number = 1
    with opened(path) as file:
        while at and (data := file.read(min(at, PART_BYTES))):
            number += data.count(b"\n")
            at -= len(data)
    return number
