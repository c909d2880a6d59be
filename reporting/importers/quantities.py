"""This module converts numbers as people write them, with units, to the units of our columns. Pure."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from reporting.results.rows import kind_of
from reporting.results.settings import SETTINGS

_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
_BYTES = {
    "b": 1.0, "byte": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
_GB = {unit: factor / 1e9 for unit, factor in _BYTES.items()}
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([^\W\d_]+|%)?")
_NOTHING = {"", "-", "\u2013", "n/a", "na", "nan", "none", "null", "inf", "-inf", "oom", "#n/a", "#div/0!"}
_LONGEST_TEXT = 200
# A loss may be negative; a training has at least one device.
_LEAST = {"mean_loss": float("-inf"), "world_size": 1.0, "device_count": 1.0}
# What a table's columns hold.
_LEAST_FLOAT, _MOST_FLOAT = 1e-100, 1e100
_LARGEST = 2.0**62


class Unreadable(ValueError):
    """The column can't hold the value. The message says which value."""


def units_of(column: str) -> Mapping[str, float]:
    """Returns, for each unit, the factor that converts a number to the column's unit."""
    if column.endswith("_sec") and "per_sec" not in column:
        return _TIME
    if column.endswith("_gb"):
        return _GB
    if column.endswith("_bytes"):
        return _BYTES
    if column.endswith("_pct"):
        return {"%": 1.0, "percent": 1.0}
    return {"%": 0.01, "percent": 0.01} if column in ("mfu", "step_time_cv") else {}


def value_for(column: str, value: Any, factor: float = 1.0) -> Any:
    """Returns the column's value for ``value``, or None if ``value`` says nothing. A unit in ``value``
    overrides ``factor``.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if column in SETTINGS and value not in SETTINGS[column]:
        return None  # A column of that name with something else in it, such as a loss.
    kind = kind_of(column)
    if kind is str:
        return whole(" ".join(str(value).split())[:_LONGEST_TEXT]) or None
    number = _number(column, value, factor)
    if number is None:
        return None
    if number < _LEAST.get(column, 0.0):
        raise Unreadable(f"{column} is {value!r}, which can't be")
    if kind is float:
        if number and not _LEAST_FLOAT <= abs(number) <= _MOST_FLOAT:
            raise Unreadable(f"{column} is {value!r:.60}, which can't be")
        return number
    if not number.is_integer() or number > _LARGEST:
        raise Unreadable(f"{column} is {value!r}, expected a whole number")
    return int(number)


def whole(text: str) -> str:
    """Replaces halves of surrogate pairs, which no file of a report can hold."""
    return text.encode(errors="replace").decode()


def _number(column: str, value: Any, factor: float) -> float | None:
    if isinstance(value, str):
        value, factor = _from_text(column, value, factor)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{column} is {value!r}, expected a number")
    try:
        number = float(value) * factor
    except OverflowError:
        raise Unreadable(f"{column} is beyond any number that could have been measured") from None
    return number if isfinite(number) else None


def _from_text(column: str, text: str, factor: float) -> tuple[float, float]:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2].lower() if match and match[2] else None
    if not match or (unit is not None and unit not in units_of(column)):
        raise Unreadable(f"{column} is {text[:40]!r}, expected a number")
    try:
        number = float(match[1].replace(",", ""))
    except ValueError:
        raise Unreadable(f"{column} is {text[:40]!r}, expected a number") from None
    return number, units_of(column)[unit] if unit else factor
