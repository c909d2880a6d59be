"""Checks that the fields of a record have the types that they are declared with. Pure.

Whoever may write to a store can write any JSON. What is no text, count or time where one must be would end
each command that reads the log, at the place where it is first used.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

# More than any count of bytes, and less than what no longer fits into a column or a float.
MOST_COUNT = 2**63
# The year 5138. No calendar knows times that are much later.
_LATEST_S = 1e11


def check_types(record: Any) -> None:
    """Raises ``ValueError`` if a field has another type, or is no count or time where it must be one."""
    for name, hint in _hints(record.__class__).items():
        value = getattr(record, name)
        if not _fits(value, hint) or (name.endswith("_s") and not 0 <= value < _LATEST_S):
            raise ValueError(f"{name} is {str(value)[:100]!r}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_COUNT
    if hint is float:
        return _is_number(value)
    if hint in (str, bool, NoneType):
        return isinstance(value, hint)
    origin, within = get_origin(hint), get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, within[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(one, within[1]) for one in value.values())
    if within:  # one of several types
        return any(_fits(value, one) for one in within)
    return isinstance(value, hint)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_COUNT
