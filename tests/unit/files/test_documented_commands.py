"""Each command of ours in a page's blocks is understood, and suits the file that it is given."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli.arguments import longhaul_parser
from tests.house import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FEWEST = 100
_BLOCK = re.compile(r"^```sh(?: test)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TAKER = {"run": "train", "sweep": "sweep"}
_COMMAND = re.compile(
    r"(?<![\w/])longhaul |(?:python )?\bjobs/(?=(?:sweep|train|report)\.py )|-m -- jobs\.cli "
)


def commands(text: str) -> Iterator[list[str]]:
    """The words behind ``longhaul`` of each command in the text's shell blocks, in order. ``python
    jobs/train.py`` and ``torchrun -m -- jobs.cli`` are the same commands."""
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||[|;]", re.sub(r"(^| +)#.*", "", line)):
                if found := _COMMAND.search(part):
                    words = re.split(r" [>|] ", part[found.end() :])[0]
                    yield shlex.split(re.sub(r"^(sweep|train|report)\.py", r"\1", words.rstrip(')"')))


def misunderstood(text: str) -> list[str]:
    return [" ".join(words) for words in commands(text) if not _is_understood(words)]


def _is_understood(words: list[str]) -> bool:
    try:
        longhaul_parser().parse_args(words)
    except SystemExit as ended:
        return not ended.code
    return True


def given_to_another(text: str) -> list[str]:
    """Commands that get a file that an ``init`` above has written for another one."""
    wrong: list[str] = []
    takers: dict[str, str] = {}
    for command, *words in commands(text):
        if command == "init":
            parsed = longhaul_parser().parse_args([command, *words])
            takers[str(parsed.file or f"{parsed.kind}.yaml")] = _TAKER[parsed.kind]
        elif command in _TAKER.values() and words and takers.get(words[0], command) != command:
            wrong.append(" ".join([command, *words]))
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_page_is_understood(page: Path) -> None:
    assert misunderstood(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_gives_a_runs_spec_to_a_sweep_or_the_reverse(page: Path) -> None:
    assert given_to_another(page.read_text(encoding="utf-8")) == []


def test_the_pages_commands_are_found() -> None:
    assert sum(len(list(commands(page.read_text(encoding="utf-8")))) for page in PAGES) >= FEWEST


# The rules, seen red.


def test_a_flag_that_is_gone_is_seen() -> None:
    block = (
        "```sh\nlonghaul sweep SPEC --dry-run  # plans\nray job submit python jobs/train.py S --gone\n```\n"
    )
    assert misunderstood(block) == ["train S --gone"]


def test_what_init_wrote_for_a_run_and_a_sweep_gets_is_seen() -> None:
    block = "```sh\nlonghaul init a.yaml\nlonghaul init --kind sweep b.yaml\n" + (
        "longhaul sweep a.yaml --best && longhaul sweep b.yaml\nlonghaul train a.yaml\n```\n"
    )
    assert given_to_another(block) == ["sweep a.yaml --best"]
