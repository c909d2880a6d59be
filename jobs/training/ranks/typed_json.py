"""Encodes plain data as JSON and decodes it: dataclasses, tuples, lists, mappings and their contents. Pure.

Decoding trusts nothing: each value must be of the type that is declared for its place. So a stranger's JSON
makes wrong values at worst, and never runs code.
"""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_Read = Callable[[Any, str], Any]


def encode(value: Any) -> bytes:
    """Encodes a value; floats come back to the bit, also if not finite. ``TypeError`` if not plain data."""
    return json.dumps(value, separators=(",", ":"), default=_fields).encode()


def decode(kind: Any, data: bytes) -> Any:
    """Decodes a value of the type ``kind``; ``ValueError`` names the part of ``data`` that does not fit."""
    try:
        return typed(kind, json.loads(data))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def typed(kind: Any, value: Any) -> Any:
    """Makes a value of the type ``kind`` of what JSON held; ``ValueError`` names what does not fit."""
    return _reader(kind)(value, "it")


def _fields(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} is no plain data")
    return {field.name: getattr(value, field.name) for field in fields(value)}


@cache
def _reader(kind: Any) -> _Read:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin is Literal:
        return _check(lambda value: value in inner, f"one of {', '.join(map(str, inner))}")
    if origin in (Union, types.UnionType):
        return _union_reader(inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return _row_reader(inner)
    if origin in (tuple, list):
        return _list_reader(origin, inner[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(inner[1])
    return _plain_reader(kind)


def _plain_reader(kind: Any) -> _Read:
    if kind is float:
        # Python takes an integer wherever a float is expected; it is not converted.
        return _check(lambda value: type(value) in (float, int), "a number")
    if kind in (int, str, bool, type(None)):
        return _check(lambda value: type(value) is kind, kind.__name__)
    raise TypeError(f"{kind} is no type of plain data")


def _check(fits: Callable[[Any], bool], expected: str) -> _Read:
    def read(value: Any, where: str) -> Any:
        if not fits(value):
            raise _wrong(where, value, expected)
        return value

    return read


def _dataclass_reader(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind) if field.init}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or not value.keys() <= known.keys():
            raise _wrong(where, value, f"the fields of {kind.__name__}")
        for name, field in known.items():
            if name not in value and field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"{where} has no {name}")
        return kind(**{name: _reader(hints[name])(item, f"{where}.{name}") for name, item in value.items()})

    return read


def _union_reader(kinds: tuple[Any, ...]) -> _Read:
    def read(value: Any, where: str) -> Any:
        if value is None and type(None) in kinds:
            return None
        problems = []
        for kind in (kind for kind in kinds if kind is not type(None)):
            try:
                return _reader(kind)(value, where)
            except ValueError as error:
                problems.append(str(error))
        raise ValueError("; or ".join(problems))

    return read


def _row_reader(kinds: tuple[Any, ...]) -> _Read:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(kinds):
            raise _wrong(where, value, f"{len(kinds)} values")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_reader(kind)(item, f"{where}[{place}]") for place, (kind, item) in pairs)

    return read


def _list_reader(make: Any, kind: Any) -> _Read:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        read_item = _reader(kind)
        return make(read_item(item, f"{where}[{place}]") for place, item in enumerate(value))

    return read


def _mapping_reader(kind: Any) -> _Read:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        return {name: _reader(kind)(item, f"{where}.{name}") for name, item in value.items()}

    return read


def _wrong(where: str, found: Any, expected: str) -> ValueError:
    text = json.dumps(found)
    return ValueError(f"{where} is {text if len(text) <= 60 else text[:57] + '...'}, expected {expected}")
