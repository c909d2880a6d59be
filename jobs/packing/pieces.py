"""How an input is cut into pieces, each of which becomes one shard. Pure.

It follows from names, order and sizes alone, never from how many workers there are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

# Of input; a worker holds a few times as much.
PIECE_BYTES = 64 * 2**20

SourceKind = Literal["text", "jsonl", "parquet"]


class InputError(Exception):
    """The user's turn: where, what was found, what to do."""


class PackingFailed(Exception):
    """Nobody's turn but Ray's: doing it again may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """A file; ``sizes`` are its bytes, of Parquet those of each row group."""

    path: str
    kind: SourceKind
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """What begins from ``start`` on and before ``end``: lines by their first byte, or row groups."""

    path: str
    kind: SourceKind
    start: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPiece:
    number: int
    spans: tuple[TextSpan, ...]


def cut_into_pieces(sources: Iterable[InputSource], piece_bytes: int = PIECE_BYTES) -> list[InputPiece]:
    """In the order of the sources. Large files are cut, small ones that follow each other share a piece."""
    pieces: list[InputPiece] = []
    spans: list[TextSpan] = []
    room = piece_bytes
    for span, num_bytes in (cut for source in sources for cut in _cut(source, piece_bytes)):
        if spans and num_bytes > room:
            pieces.append(InputPiece(number=len(pieces), spans=tuple(spans)))
            spans, room = [], piece_bytes
        spans.append(span)
        room -= num_bytes
    return [*pieces, InputPiece(number=len(pieces), spans=tuple(spans))] if spans else pieces


def _cut(source: InputSource, piece_bytes: int) -> Iterator[tuple[TextSpan, int]]:
    """Spans with their sizes."""
    if source.kind == "parquet":
        for number, num_bytes in enumerate(source.sizes):
            yield _span(source, number, number + 1, len(source.sizes)), num_bytes
        return
    (size,) = source.sizes
    for start in range(0, size, piece_bytes):
        end = min(start + piece_bytes, size)
        yield _span(source, start, end, size), end - start


def _span(source: InputSource, start: int, end: int, whole: int) -> TextSpan:
    return TextSpan(path=source.path, kind=source.kind, start=start, end=end, is_last=end == whole)
