"""Cuts the input into pieces; each piece becomes one shard. Pure.

The cut depends only on the names, the order and the sizes of files, never on the number of workers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

# The input bytes of a piece. A worker's memory holds a few times as much.
PIECE_BYTES = 64 * 2**20

SourceKind = Literal["text", "jsonl", "json", "csv", "parquet", "arrow"]


class InputError(Exception):
    """The input is wrong. The message says where, what was found, what to do."""


class PackingFailed(Exception):
    """Ray failed, not the input. Packing again may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object of the store at the URL ``store``, as it was when it was found. ``version`` is None if the
    store tells none.
    """

    store: str
    name: str
    num_bytes: int
    version: str | None

    def __str__(self) -> str:
        return f"{self.store.removesuffix('/')}/{self.name}"


# An absolute path, or an object.
InputFile = str | StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Of a split of a data set the names of its files, in order, and how many files each other split has."""

    name: str
    files: tuple[str, ...]
    others: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """An input file. ``sizes`` holds its size in bytes, unpacked.

    Of Parquet and Arrow it holds the sizes of the groups of rows, and of JSON arrays and CSV the sizes of the
    parts into which they may be cut.
    """

    path: InputFile
    kind: SourceKind
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """The part of a file that begins at ``start`` or later and before ``end``.

    Lines and records count by the offset of their first byte, Parquet and Arrow by groups of rows.
    """

    path: InputFile
    kind: SourceKind
    start: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPiece:
    number: int
    spans: tuple[TextSpan, ...]


def cut_into_pieces(sources: Iterable[InputSource], piece_bytes: int = PIECE_BYTES) -> list[InputPiece]:
    """Cuts the sources in order. Large files are split; small ones in a row share a piece."""
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
    """Yields spans with their sizes in bytes."""
    if source.kind in ("parquet", "arrow"):
        for number, num_bytes in enumerate(source.sizes):
            yield _span(source, number, number + 1, len(source.sizes)), num_bytes
        return
    if source.kind in ("json", "csv"):
        ends = list(accumulate(source.sizes))
        for start, end in pairwise([0, *ends]):
            yield _span(source, start, end, ends[-1]), end - start
        return
    (size,) = source.sizes
    for start in range(0, size, piece_bytes):
        end = min(start + piece_bytes, size)
        yield _span(source, start, end, size), end - start


def _span(source: InputSource, start: int, end: int, whole: int) -> TextSpan:
    return TextSpan(path=source.path, kind=source.kind, start=start, end=end, is_last=end == whole)
