"""Every flag of every command stands on the command's page."""

import argparse
import re
from collections.abc import Iterator

import pytest

from jobs.cli.arguments import longhaul_parser
from tests.house import ROOT


def flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """Each flag of a command and of all verbs below it, in all its forms; without those that are hidden."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags(below)
        elif action.help != argparse.SUPPRESS:
            yield tuple(action.option_strings)


def commands() -> dict[str, argparse.ArgumentParser]:
    subparsers = (
        action for action in longhaul_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return dict(next(subparsers).choices)


def undocumented(page: str, wanted: Iterator[tuple[str, ...]]) -> list[tuple[str, ...]]:
    written = {"--help", *re.findall(r"(?<!\w)--?[a-z][a-z-]*", page)}
    return sorted({ways for ways in wanted if ways and written.isdisjoint(ways)})


@pytest.mark.parametrize(("name", "parser"), commands().items(), ids=commands())
def test_every_flag_stands_on_its_commands_page(name: str, parser: argparse.ArgumentParser) -> None:
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    assert undocumented(page, flags(parser)) == []


def test_a_flag_that_is_not_written_is_seen() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deadline")
    parser.add_argument("--dead")
    assert undocumented("`--deadline DAYS`", flags(parser)) == [("--dead",)]
