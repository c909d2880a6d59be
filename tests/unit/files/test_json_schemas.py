"""docs/schemas has a JSON Schema of what each command prints with ``--json``; ``make golden`` writes them
again.

Tests of the commands hold what is printed to them, by ``tests.unit.printed.checked``.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from jobs.cli.arguments import longhaul_parser
from tests.house import ROOT
from tests.unit import printed
from tests.unit.printed import FOLDER, PRINTED, checked, schema_text

LIST = (ROOT / "docs/json.md").read_text(encoding="utf-8")


def commands_with_json(commands: argparse.ArgumentParser, name: str = "longhaul") -> Iterator[str]:
    for action in commands._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from commands_with_json(below, f"{name} {verb}")
        elif "--json" in action.option_strings:
            yield name


@pytest.mark.parametrize("name", PRINTED)
def test_a_schema_is_what_its_command_prints(name: str) -> None:
    path, text = FOLDER / f"{name}.json", schema_text(name)
    if os.environ.get("LONGHAUL_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == text, "`make golden` writes it again, then review the diff"
    Draft202012Validator.check_schema(json.loads(text))


def test_every_command_that_prints_json_has_a_schema_and_each_is_listed() -> None:
    told = [words for command, _ in PRINTED.values() for words in re.split(", and ", command)]
    with_json = {*commands_with_json(longhaul_parser())}

    assert len(with_json) > 15
    without = {one for one in with_json if not any(f"{words} ".startswith(f"{one} ") for words in told)}
    assert without - {"longhaul checkpoints unpin"} == set()
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(PRINTED)
    assert [name for name in PRINTED if f"(schemas/{name}.json)" not in LIST] == []


def test_some_test_holds_each_command_to_its_schema() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    verbs = {f"checkpoints_{verb}" for verb in re.findall(r'\basked\(capsys, "(\w+)"', tests)}
    held = {*re.findall(r'\bchecked\("(\w+)"', tests), *verbs}
    assert sorted(PRINTED.keys() - held) == []


# The check itself, seen red.

PIN = {"name": "g", "is_pinned": True}


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (PIN, None),
        (PIN | {"mood": "fine"}, "Additional properties are not allowed"),
        ({"name": "g"}, "'is_pinned' is a required property"),
        (PIN | {"is_pinned": "yes"}, "is_pinned: 'yes' is not of type 'boolean'"),
    ],
)
def test_a_new_key_a_missing_one_and_another_type_are_seen(told: object, problem: str | None) -> None:
    if problem is None:
        assert checked("checkpoints_pin", json.dumps(told)) == told
        return
    with pytest.raises(AssertionError, match=problem):
        checked("checkpoints_pin", json.dumps(told))


def test_a_new_key_of_a_part_is_seen_too() -> None:
    audit = {"run": "r", "findings": [{"place": "p", "says": "s", "is_wrong": True, "is_mendable": False}]}
    with pytest.raises(AssertionError, match="'is_mended' is a required property"):
        checked("checkpoints_fsck", json.dumps(audit))


def test_a_number_that_is_none_is_no_json() -> None:
    with pytest.raises(ValueError, match="NaN is not JSON"):
        checked("checkpoints_pin", '{"name": "g", "is_pinned": NaN}')


def test_the_types_name_no_command_twice() -> None:
    assert len({command for command, _ in printed.PRINTED.values()}) == len(PRINTED)
