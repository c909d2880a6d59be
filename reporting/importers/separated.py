"""This module reads CSV files of other tools: any usual separator, headers anywhere in the first
rows. Pure.
"""

import csv
import io

from reporting.importers.found import Found, ImportProblem
from reporting.importers.grids import expected_of, read_grids
from reporting.importers.mapping import NameMapping

_SEPARATORS = ",;\t"


def read_separated(data: bytes, mapping: NameMapping) -> Found:
    try:
        text = data.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ImportProblem(f"not a CSV file in UTF-8 ({error})") from None
    if not any(cell.strip() for row in rows for cell in row):
        raise ImportProblem("empty: expected a CSV file with a header and a row per run")
    found = read_grids([("", rows)], mapping)
    if not found.runs:
        raise ImportProblem(expected_of(found))
    return found


def _separator(text: str) -> str:
    first = text[:10_000]
    return max(_SEPARATORS, key=first.count)
