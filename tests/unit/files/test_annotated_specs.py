"""The two annotated specs have every key that a spec may have, no other one, and the defaults of the code."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from jobs.spec_schema.file import SpecFile
from jobs.spec_schema.model import Model
from jobs.spec_schema.run_data import DataSource
from jobs.spec_schema.run_recovery import WorldSize
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import SweepSpec
from tests.house import ROOT

FILES: Mapping[type[SpecFile], Path] = {
    RunSpec: ROOT / "docs/examples/run.yaml",
    SweepSpec: ROOT / "docs/examples/sweep.yaml",
}
# These are written as one value, or as a mapping whose keys the comment names. A stored spec alone has a
# model's shape. The list of sources is empty, or has mappings.
IN_TWO_FORMS: Mapping[type, tuple[str, ...]] = {
    Model: ("path", "name"),
    WorldSize: ("min", "max"),
    DataSource: ("name", "path", "weight"),
}
# These sections have a name of the user's own, or a list, between their key and their keys.
INSIDE = {"overrides": "overrides.local", "include": "include.0", "exclude": "include.0"}
# A selection's keys have no default: without them an axis is taken as it is.
SELECTION = "include.0."
each_kind = pytest.mark.parametrize("kind", FILES, ids=lambda kind: kind.of.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of a spec. ``default`` is what the code takes for it, MISSING where it is required."""

    type: Any
    default: Any


def keys_of(section: type, above: str = "") -> Iterator[tuple[str, Key]]:
    """Every key by its place, with sections before what is in them."""
    for name, key in _keys_in(section):
        place = f"{above}{name}"
        yield place, key
        for below in _sections_in(key.type):
            yield from keys_of(below, f"{INSIDE.get(place, place)}.")


def _keys_in(section: type) -> Iterator[tuple[str, Key]]:
    if issubclass(section, BaseModel):
        for name, field in section.model_fields.items():
            default = MISSING if field.is_required() else field.get_default(call_default_factory=True)
            # pydantic has taken apart what was annotated.
            yield name, Key(type=field.annotation, default=default)
        return
    types = get_type_hints(section, include_extras=True)
    for each in fields(section):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        yield each.name, Key(type=types[each.name], default=default)


def _sections_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if (issubclass(annotation, BaseModel) or is_dataclass(annotation)) and annotation not in IN_TWO_FORMS:
            yield annotation
    else:
        for part in get_args(annotation):
            yield from _sections_in(part)


def _two_forms(annotation: Any) -> tuple[str, ...]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return IN_TWO_FORMS.get(annotation, ())
    return next((words for part in get_args(annotation) if (words := _two_forms(part))), ())


def written(data: object, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a file by its place, with its value."""
    items = enumerate(data) if isinstance(data, list) else data.items() if isinstance(data, dict) else ()
    for name, value in items:
        if not isinstance(value, str) or isinstance(data, dict):
            yield f"{above}{name}", value
            yield from written(value, f"{above}{name}.")


def comments(text: str) -> dict[str, str]:
    """What stands behind each key, by its place."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if not (key := re.match(r"( *(?:- )?)(\w+):(?:.*?(?<=\s)# (.*)|.*)$", line)):
            continue
        path = [(indent, name) for indent, name in path if indent < len(key[1])]
        path += [(len(key[1]), f"0.{key[2]}" if "-" in key[1] else key[2])]
        found[".".join(name for _, name in path)] = key[3] or ""
    return found


@each_kind
def test_every_key_of_a_spec_occurs_and_no_other(kind: type[SpecFile]) -> None:
    there = {place for place, _ in written(_data(kind))}
    known = dict(keys_of(kind))

    assert sorted(known.keys() - there) == []
    assert sorted(place for place in there - known.keys() if not _is_the_users(place)) == []


def _is_the_users(place: str) -> bool:
    """The name of a group, of a variable, or a place in a list."""
    return bool(re.search(r"(^|\.)environment\.\w+$|^overrides\.\w+$|\.\d+$", place))


@each_kind
def test_each_value_is_the_default_or_its_comment_says_what_is(kind: type[SpecFile]) -> None:
    values, said = dict(written(_data(kind))), comments(FILES[kind].read_text(encoding="utf-8"))
    wrong = []
    for place, key in keys_of(kind):
        if place.startswith(SELECTION):
            continue
        comment = said.get(place, "")
        default = re.search(r"\bdefault (\S+?)(?:[;.]|$)", comment)
        claims = yaml.safe_load(default[1]) if default else values[place]
        if comment.startswith("required") != (key.default is MISSING) and "or epochs" not in comment:
            wrong.append(f"{place}: is it required?")
        elif key.default is not MISSING and not _has_section(key) and not _is_equal(key, claims):
            wrong.append(f"{place}: {claims!r}, but the code has {key.default!r}")
    assert wrong == []


def _has_section(key: Key) -> bool:
    """A section whose keys are judged one by one."""
    return isinstance(key.default, BaseModel) or is_dataclass(key.default)


def _is_equal(key: Key, value: object) -> bool:
    plain = TypeAdapter(Any).dump_python(key.default, mode="json")
    return bool(value == plain or [value] == plain)


@each_kind
def test_a_key_with_two_forms_says_the_other_one(kind: type[SpecFile]) -> None:
    said = comments(FILES[kind].read_text(encoding="utf-8"))
    for place, key in keys_of(kind):
        assert all(f"{word}:" in said[place] for word in _two_forms(key.type)), place


@each_kind
def test_a_list_of_words_in_a_comment_is_what_the_key_takes(kind: type[SpecFile]) -> None:
    """Where a key takes one of some words, all of them stand in the line: as its value or in its comment."""
    said = comments(FILES[kind].read_text(encoding="utf-8"))
    values = dict(written(_data(kind)))
    missing = [
        f"{place}: {word}"
        for place, key in keys_of(kind)
        for word in _words(key.type)
        if not place.startswith((SELECTION, "best.")) and word not in f"{said[place]} {values[place]}"
    ]
    assert missing == []


def _words(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _words(part)


@each_kind
def test_the_file_is_a_spec_as_it_stands(kind: type[SpecFile]) -> None:
    assert kind.load(FILES[kind]).name == "every-key"


def _data(kind: type[SpecFile]) -> object:
    return yaml.safe_load(FILES[kind].read_text(encoding="utf-8"))
