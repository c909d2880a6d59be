"""What a run's driver records of the data that are trained on, for people. Pure.

Nothing is decided by it. Whatever lies in its place in the store, ``decode`` returns what it says or raises
``ValueError``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checkpointing.stores.bounded import excess_of

_FORMAT = "longhaul data read 1"
MOST_BYTES = 1 << 20
_MOST_COUNT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFacts:
    """Of conversations, each is a document. ``num_tokens`` were read. A length counts no end of a document;
    ``length_counts[k]`` documents have at least ``length_bounds[k]`` tokens, and less than the next bound.

    Of the first ``num_compared`` documents with text, ``num_copies`` are equal to an earlier one. Of a spec,
    no sample holds ``num_cut`` documents as a whole; None without a spec, and of conversations, which rows
    never cut.
    """

    num_tokens: int
    num_documents: int
    longest: int
    length_bounds: list[int]
    length_counts: list[int]
    num_compared: int
    num_copies: int
    num_padding_tokens: int
    num_cut: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSource:
    """Tokens in one place. ``name`` and ``share`` are None unless several are mixed. ``documents`` is None if
    not all tokens were read for them; ``unread`` says why.
    """

    name: str | None
    share: float | None
    num_tokens: int
    num_samples: int
    tokenizer: str | None
    digest: str
    documents: DocumentFacts | None
    unread: str | None


def name_of(run: str) -> str:
    return f"runs/{run}/data.json"


def encode(sources: Sequence[ReadSource]) -> bytes:
    body = {"format": _FORMAT, "sources": [asdict(source) for source in sources]}
    return json.dumps(body, indent=1).encode()


def decode(data: bytes) -> tuple[ReadSource, ...]:
    try:
        if excess := excess_of(data):
            raise ValueError(f"it holds {excess}")
        body = json.loads(data)
        if body["format"] != _FORMAT:
            raise ValueError(f"its format is {body['format']!r:.60}, expected {_FORMAT!r}")
        return tuple(map(_source, body["sources"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what a run records of its data ({error!r:.100})") from None


def _source(body: Mapping[str, Any]) -> ReadSource:
    documents = body["documents"]
    share = body["share"]
    if share is not None and not (isinstance(share, int | float) and 0 <= share <= 1):
        raise ValueError(f"a share is {share!r:.60}")
    return ReadSource(
        name=_text(body["name"]),
        share=share,
        num_tokens=_count(body["num_tokens"]),
        num_samples=_count(body["num_samples"]),
        tokenizer=_text(body["tokenizer"]),
        digest=_text(body["digest"]) or "",
        documents=None if documents is None else _documents(documents),
        unread=_text(body["unread"]),
    )


def _documents(body: Mapping[str, Any]) -> DocumentFacts:
    bounds, counts = ([_count(value) for value in body[name]] for name in ("length_bounds", "length_counts"))
    if len(bounds) != len(counts) + 1:
        raise ValueError("the bounds of its lengths are not those of its counts")
    return DocumentFacts(
        num_tokens=_count(body["num_tokens"]),
        num_documents=_count(body["num_documents"]),
        longest=_count(body["longest"]),
        length_bounds=bounds,
        length_counts=counts,
        num_compared=_count(body["num_compared"]),
        num_copies=_count(body["num_copies"]),
        num_padding_tokens=_count(body["num_padding_tokens"]),
        num_cut=None if body["num_cut"] is None else _count(body["num_cut"]),
    )


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT:
        return value
    raise ValueError(f"a number is {value!r:.60}")


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"a text is {value!r:.60}")
