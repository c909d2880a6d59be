"""These functions write GitHub's Markdown: tables, lists, and how much is left out. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from reporting.analysis.formatting import THIN, counted


def table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    """Writes a table. ``sides`` aligns the columns, with one letter for each: l or r."""
    rule = ["--:" if side == "r" else ":--" for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *rows))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def left_out(shown: int, there: int, noun: str, where: str = "findings.json has all") -> Iterator[str]:
    """Yields a sentence that says how many are shown, or nothing if all are."""
    if shown < there:
        yield f"{shown:,} of {counted(there, noun)} are shown; {where}."


def raw(number_text: str) -> str:
    """Prepares a number that we formatted: brackets need no escape, and a thin space looks too wide in plain
    text.
    """
    return number_text.replace(THIN, " ")


def origin(flags: Iterable[str], whose: str = "") -> str:
    """Marks simulated and imported numbers. Every number that was not measured here must be marked."""
    found = [flag for flag in ("simulated", "imported") if flag in set(flags)]
    return f" ({whose}{', '.join(found)})" if found else ""
