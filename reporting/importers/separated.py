"""This module reads CSV files of other tools: any usual separator, headers anywhere in the first
rows. Pure.
"""

import csv
import io

from reporting.importers.contents import ImportProblem, SourceContents
from reporting.importers.grids import read_grids
from reporting.importers.mapping import NameMapping

_SEPARATORS = ",;\t"


def read_separated(data: bytes, mapping: NameMapping) -> SourceContents:
    try:
        text = data.decode("utf-8-sig")
        separator = max(_SEPARATORS, key=text[:10_000].count)
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ImportProblem(f"not a CSV file in UTF-8 ({error})") from None
    if not any(cell.strip() for row in rows for cell in row):
        raise ImportProblem("empty: expected a CSV file with a header and a row per run")
    return read_grids([("", rows)], mapping)
