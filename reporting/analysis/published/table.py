"""The table of published results is CSV: a result a line, under headers that are the fields of ``Published``.

``results.csv`` beside this file is such a table. What a source does not say is empty. Pure.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from math import isfinite
from pathlib import Path

from reporting.analysis.findings import Published

_FILE = Path(__file__).with_name("results.csv")
COLUMNS = tuple(field.name for field in fields(Published))
REQUIRED = tuple(field.name for field in fields(Published) if field.default is MISSING)
_COUNTS = frozenset(("parameters", "devices", "seq_len", "micro_batch", "sequences_per_step"))
_NUMBERS = frozenset(("tokens_per_sec_per_device", "mfu_pct"))
_MOST_RESULTS = 10_000
_MOST_PROBLEMS = 10
_LONGEST = 300
# Without brackets, quotes and blanks, so that an address is one in Markdown and HTML too.
_URL = re.compile(r"https://[A-Za-z0-9._~:/?#@!$&*+,;=%-]{1,500}")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")

Value = str | int | float


class PublishedError(Exception):
    """A table is not understood. Each problem says which line, what was found and what was expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@cache
def published_results() -> tuple[Published, ...]:
    """Returns the results that Longhaul brings."""
    return results_of(_FILE.read_text(encoding="utf-8"))


def results_of(text: str) -> tuple[Published, ...]:
    """Reads a table. Columns that are not required may be missing. Raises ``PublishedError``."""
    problems: list[str] = []
    found: list[Published] = []
    try:
        reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True)
        headers = list(reader.fieldnames or ())
        if wrong := list(_wrong_headers(headers)):
            raise PublishedError(wrong)
        for row in reader:
            if len(found) == _MOST_RESULTS:
                problems.append(f"line {reader.line_num}: at most {_MOST_RESULTS:,} results are read")
            elif result := _result(row, reader.line_num, problems):
                found.append(result)
            if len(problems) >= _MOST_PROBLEMS or len(found) == _MOST_RESULTS < len(problems):
                break
    except csv.Error as error:
        raise PublishedError([*problems, f"line {reader.line_num}: is not CSV: {error}"]) from None
    if problems:
        raise PublishedError(problems)
    return tuple(found)


def _wrong_headers(headers: list[str]) -> Iterator[str]:
    for name in REQUIRED:
        if name not in headers:
            yield f"line 1: has no column {name}; expected {', '.join(REQUIRED)}"
    for name in dict.fromkeys(headers):
        if name not in COLUMNS:
            yield f"line 1: {_shown(name)} is not a column; expected some of {', '.join(COLUMNS)}"
        elif headers.count(name) > 1:
            yield f"line 1: the column {name} is there twice"


def _result(row: Mapping[str | None, object], line: int, problems: list[str]) -> Published | None:
    if None in row or None in row.values():
        problems.append(f"line {line}: has not as many fields as there are headers")
        return None
    values: dict[str, Value] = {}
    wrong = []
    for name, text in row.items():
        assert isinstance(name, str) and isinstance(text, str)
        value, expected = (None, "") if not text.strip() else _value(name, text.strip())
        if value is not None:
            values[name] = value
        elif expected or name in REQUIRED:
            wrong.append(f"line {line}: {name}: found {_shown(text)}, expected {expected or 'a value'}")
    problems += wrong
    return None if wrong else Published(**values)  # type: ignore[arg-type]  # by column, checked above


def _value(name: str, text: str) -> tuple[Value | None, str]:
    """Returns the value of a field, or None and what was expected."""
    if name in _COUNTS:
        return _checked(int, text, most=1e15), "a whole number above 0"
    if name in _NUMBERS:
        return _checked(float, text, most=1e12), "a number above 0"
    if name == "url":
        return text if _URL.fullmatch(text) else None, "an address that begins with https://"
    if name == "date":
        return text if _DATE.fullmatch(text) else None, "a date such as 2024-12"
    return text if len(text) <= _LONGEST else None, f"at most {_LONGEST} characters"


def _checked(kind: Callable[[str], int | float], text: str, *, most: float) -> int | float | None:
    try:
        value = kind(text)
        return value if isfinite(value) and 0 < value <= most else None
    except (ValueError, OverflowError):
        return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")
