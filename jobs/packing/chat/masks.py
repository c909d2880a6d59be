"""Which tokens are an assistant's, from the characters that each token stands for. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
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
    for span, found in zip(rendered.spans, _overlapping(rendered.spans, offsets), strict=True):
        for number in _tokens_of(span, rendered.text, offsets, found):
            mask[number] = True
    return mask


def _tokens_of(span: Span, text: str, offsets: Sequence[Offset], found: list[int]) -> list[int]:
    if span.is_exact:
        return found
    while found and (offsets[found[-1]][1] > span.end or _is_blank(text, offsets[found[-1]])):
        found.pop()
    return found


def _overlapping(spans: Sequence[Span], offsets: Sequence[Offset]) -> list[list[int]]:
    """For each span the tokens that lie in it at least in part. Spans are in order and share nothing."""
    ends = [span.end for span in spans]
    found: list[list[int]] = [[] for _ in spans]
    for number, (start, end) in enumerate(offsets):
        at = bisect_right(ends, start)
        while start < end and at < len(spans) and spans[at].start < end:
            found[at].append(number)
            at += 1
    return found


def _is_blank(text: str, offset: Offset) -> bool:
    return text[slice(*offset)].isspace()
