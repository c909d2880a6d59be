"""Says what data a long run read, as cells of a table that page and Markdown show. Pure."""

from collections.abc import Iterator, Sequence

from reporting.analysis.formatting import UNKNOWN, count, fraction, short
from reporting.recording.read_data import ReadSource

HEADS = (
    "source", "share", "tokens", "samples", "documents", "longest", "copies", "cut", "padding", "tokenizer",
    "digest",
)  # fmt: skip
NUMBERS = HEADS[1:9]
MOST_SOURCES = 20
_DIGEST_CHARS = 12


def cells(source: ReadSource) -> list[str]:
    """A text for each of ``HEADS``. What only reading all tokens tells is unknown if they were not read."""
    found = source.documents
    of_documents = [UNKNOWN] * 5
    if found:
        of_documents = [
            count(found.num_documents),
            count(found.longest),
            fraction(found.num_copies / max(1, found.num_compared)),
            UNKNOWN if found.num_cut is None else fraction(found.num_cut / max(1, found.num_documents)),
            fraction(found.num_padding_tokens / max(1, found.num_tokens)),
        ]
    return [
        short(source.name or "all", 40),
        fraction(1.0 if source.share is None else source.share),
        count(source.num_tokens),
        count(source.num_samples),
        *of_documents,
        short(source.tokenizer or UNKNOWN, 40),
        short(source.digest[:_DIGEST_CHARS]),
    ]


def what_is_unread(sources: Sequence[ReadSource]) -> Iterator[str]:
    """For each source whose documents are not known, why, and how to learn of them."""
    for source in sources:
        if source.unread:
            name = f"Documents of {short(source.name, 40)}" if source.name else "Documents"
            reason = short(source.unread, 300)
            yield f"{name}: not read when the run began: {reason}. See longhaul data SPEC."
