"""What columns and metrics mean, from the places that define them. Pure."""

from collections.abc import Iterator

from jobs.explaining.entry import Entry
from jobs.sweeps.rows.metrics import METRICS
from reporting.results.columns import TABLES


def of_columns() -> Iterator[Entry]:
    """A column that several tables share is one entry, unless they mean different things."""
    tables: dict[tuple[str, str], list[str]] = {}
    for table, columns in TABLES.items():
        for column in columns:
            unit = f" [{column.unit}]" if column.unit else ""
            meaning = f"{column.meaning[:1].upper()}{column.meaning[1:]}{unit}."
            tables.setdefault((column.name, meaning), []).append(table)
    for (name, meaning), names in tables.items():
        yield Entry(word=name, kind=f"column of {', '.join(names)}", meaning=meaning)
    for name, metric in METRICS.items():
        text = " ".join((metric.__doc__ or "").split())
        yield Entry(word=name, kind="metric of a sweep's results", meaning=text)
