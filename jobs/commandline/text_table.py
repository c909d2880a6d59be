"""Formats a table as plain text. A column with one value only may fold into a line above the table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.commandline.output import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    title: str
    texts: tuple[str, ...]
    is_number: bool = False
    may_fold: bool = False


def as_text(columns: Sequence[TextColumn]) -> str:
    """Returns the folded columns as one line, then the table, a line a row. Trailing blanks are cut."""
    columns = [replace(column, texts=tuple(map(_in_a_cell, column.texts))) for column in columns]
    folded = [column for column in columns if column.may_fold and len(set(column.texts)) == 1]
    shown = [column for column in columns if column not in folded]
    lines = ["  ".join(f"{column.title} {column.texts[0]}" for column in folded)] if folded else []
    widths = [max(map(len, (column.title, *column.texts))) for column in shown]
    rows = [[column.title for column in shown], *zip(*(column.texts for column in shown), strict=True)]
    for row in rows:
        cells = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(row, widths, shown, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _in_a_cell(text: str) -> str:
    return one_line(text).replace("\t", " ")
