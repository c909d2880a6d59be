"""Which tokens are an assistant's, from the characters that each token stands for. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Offset = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Characters from ``start`` to before ``end``. Without ``is_exact`` a token that goes on beyond the end
    is not of it, and neither is white space at its end.
    """

    start: int
    end: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    text: str
    spans: tuple[Span, ...]


def trained(rendered: Rendered, offsets: Sequence[Offset]) -> list[bool]:
    """For each token, whether it is an assistant's. A token that lies across the beginning of a span counts
    as of the span, as in transformers.
    """
    mask = [False] * len(offsets)
    for span in rendered.spans:
        for number in _tokens_of(span, rendered.text, offsets):
            mask[number] = True
    return mask


def _tokens_of(span: Span, text: str, offsets: Sequence[Offset]) -> Sequence[int]:
    found = list(_overlapping(span, offsets))
    if span.is_exact:
        return found
    while found and (offsets[found[-1]][1] > span.end or _is_blank(text, offsets[found[-1]])):
        found.pop()
    return found


def _overlapping(span: Span, offsets: Sequence[Offset]) -> Iterator[int]:
    for number, (start, end) in enumerate(offsets):
        if start < end and start < span.end and end > span.start:
            yield number


def _is_blank(text: str, offset: Offset) -> bool:
    return text[slice(*offset)].isspace()
