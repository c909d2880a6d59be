"""Reads a JSON object from a file that a stranger may have written, with bounds on everything."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkpointing.errors import Unfit

_MOST_DIGITS = 40
_MOST_DEPTH = 16
_MOST_VALUES = 1_000_000
_MOST_TEXT_CHARS = 60


def read_object(path: Path, *, most_bytes: int) -> Mapping[str, Any] | None:
    """The object in the file, or None if there is no such file.

    Raises ``Unfit`` with one line if the file is anything but an object within the bounds.
    """
    data = _read(path, most_bytes)
    if data is None:
        return None
    try:
        content = json.loads(
            data.decode(), parse_int=_int, parse_constant=_no_number, object_pairs_hook=_without_repeats
        )
        _check_extent(content)
    except UnicodeDecodeError:
        raise Unfit(f"{path}: is not text; expected JSON in UTF-8") from None
    except RecursionError:
        raise Unfit(f"{path}: is nested too deeply; expected at most {_MOST_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"{path}:{error.lineno}: is not JSON ({error.msg})") from None
    except ValueError as error:
        raise Unfit(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise Unfit(f"{path}: found {value_text(content)}, expected a JSON object")
    return content


def value_text(value: object) -> str:
    """A value of such a file for a message: one short line of ASCII."""
    return _cut(json.dumps(value))


def key_text(key: str) -> str:
    return _cut(json.dumps(key)[1:-1])


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT_CHARS else f"{text[: _MOST_TEXT_CHARS - 3]}..."


def _read(path: Path, most_bytes: int) -> bytes | None:
    try:
        # A pipe without a writer would block opening for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unfit(f"{path}: is not a file")
            data = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unfit(f"{path}: can't be read ({error.strerror})") from None
    except ValueError:  # A path with a null character.
        return None
    if len(data) > most_bytes:
        raise Unfit(f"{path}: is larger than {most_bytes:,} bytes")
    return data


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits; expected at most {_MOST_DIGITS}")
    return int(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key_text(key)}: is there twice")
        found[key] = value
    return found


def _check_extent(content: object) -> None:
    level, num_values = [content], 1
    for _ in range(_MOST_DEPTH):
        level = [value for parent in level for value in _inside(parent)]
        num_values += len(level)
        if num_values > _MOST_VALUES:
            raise ValueError(f"holds more than {_MOST_VALUES:,} values")
    if level:
        raise ValueError(f"is nested too deeply; expected at most {_MOST_DEPTH} levels")


def _inside(parent: object) -> Iterator[object]:
    if isinstance(parent, dict):
        yield from parent.values()
    elif isinstance(parent, list):
        yield from parent
