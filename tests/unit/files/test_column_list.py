"""docs/columns.md lists every column of every table; ``make golden`` writes it again."""

import os
from collections.abc import Iterator
from pathlib import Path

from reporting.results.columns import TABLES, Column

LIST = Path(__file__).resolve().parents[3] / "docs" / "columns.md"
TITLES = {
    "metrics": "`metrics.parquet`, `metrics.csv`: a row per run of a sweep",
    "steps": "`steps.parquet`: a row per step, attempt and rank of a long run",
    "samples": "parts `samples`: a row per look at a device",
    "incidents": "parts `incidents`: a row per event of a long run",
    "phases": "parts `phases`: a row per span of a long run's time",
}


def lines() -> Iterator[str]:
    yield "# Columns"
    yield ""
    yield "Made from `reporting/results/columns.py`. What can't be known is null. Version 1 of every table."
    for name, columns in TABLES.items():
        yield from ("", f"## {TITLES[name]}", "", "| column | type | unit | meaning |", "|---|---|---|---|")
        yield from (
            f"| `{column.name}` | {column.kind} | {column.unit} | {meaning(column)} |" for column in columns
        )


def meaning(column: Column) -> str:
    return column.meaning.replace("|", "\\|")


def test_the_list_is_what_the_tables_are() -> None:
    text = "\n".join(lines()) + "\n"
    if os.environ.get("LONGHAUL_UPDATE_GOLDEN") == "1":
        LIST.write_text(text)

    assert LIST.read_text() == text, "`make golden` writes it again, then review the diff"
