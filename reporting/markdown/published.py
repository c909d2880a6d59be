"""The part of ``report.md`` about published results. Pure."""

from collections.abc import Iterator

from reporting.analysis.findings import BesidePublished, Findings
from reporting.analysis.formatting import number, plain, times
from reporting.markdown.parts import left_out, raw, table

_MOST = 10


def published(findings: Findings) -> Iterator[str]:
    if not findings.published:
        return
    shown = findings.published[:_MOST]
    yield "## Beside published results"
    heads = ("measured here", "tokens/s per device", "published", "ratio", "source", "what differs")
    yield table(heads, "lrrrll", [_row(one) for one in shown])
    yield from left_out(len(shown), len(findings.published), "cell")


def _row(found: BesidePublished) -> list[str]:
    result = found.published
    return [
        plain(f"{found.group}: {found.subject}", 140),
        raw(number(found.tokens_per_sec_per_device, 4)),
        raw(number(result.tokens_per_sec_per_device, 4)),
        times(found.ratio),
        f"[{plain(result.source, 60)}]({result.url})",
        plain("; ".join(found.differences), 300),
    ]
