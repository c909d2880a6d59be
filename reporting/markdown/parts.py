"""What GitHub's Markdown is made of: tables, lists, and how much is left out. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from reporting.analysis.formatting import THIN, counted


def table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """``sides`` has a letter for each column: l or r."""
    rule = ["--:" if side == "r" else ":--" for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def left_out(shown: int, there: int, noun: str, where: str = "findings.json has all") -> Iterator[str]:
    """Nothing where everything is shown."""
    if shown < there:
        yield f"{shown:,} of {counted(there, noun)} are shown; {where}."


def raw(number_text: str) -> str:
    """Our own number: brackets mean nothing there, and a thin space is wider than it looks in plain text."""
    return number_text.replace(THIN, " ")
