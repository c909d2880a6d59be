"""Reads the table of published results: ``results.csv`` beside this file. Pure.

Each row has its source's address, which holds its commit. What a source does not say is empty.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from reporting.analysis.findings import Published

_FILE = Path(__file__).with_name("results.csv")
_COUNTS = ("parameters", "devices", "seq_len", "micro_batch", "sequences_per_step")
_NUMBERS = ("tokens_per_sec_per_device", "mfu_pct")


@cache
def published_results() -> tuple[Published, ...]:
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_result, csv.DictReader(file)))


def _result(row: Mapping[str, str]) -> Published:
    values: dict[str, str | int | float | None] = {name: value or None for name, value in row.items()}
    values |= {name: int(row[name]) if row[name] else None for name in _COUNTS}
    values |= {name: float(row[name]) if row[name] else None for name in _NUMBERS}
    return Published(**values)  # type: ignore[arg-type]  # by column; a test reads every row
