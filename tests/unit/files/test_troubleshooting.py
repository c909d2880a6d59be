"""The page of messages quotes what the product really says."""

import re

import pytest

from tests.house import ROOT
from tests.unit.messages import GAP, is_said, templates, templates_of_the_product

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
FEWEST = 40
FEWEST_WORDS = 2
_ROW = re.compile(r"^\| `((?:[^`]|``)+)`[^|]* \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_HEAD = "| message | why | what to do |\n|---|---|---|\n"


def messages() -> list[str]:
    """In a span of code, a message's own ` is written twice."""
    return [message.replace("``", "`") for message, _, _ in _ROW.findall(PAGE)]


def test_every_row_of_the_page_is_a_message_with_its_why_and_what_to_do() -> None:
    rows = [line for line in PAGE.replace(_HEAD, "").splitlines() if line.startswith("|")]

    assert [row for row in rows if not _ROW.match(row)] == []
    assert len(rows) == len(set(messages())) >= FEWEST


def test_each_quoted_message_occurs_in_the_source() -> None:
    said = templates_of_the_product()
    assert [message for message in messages() if not is_said(message, said)] == []


def test_each_quoted_message_has_words_by_which_it_is_found() -> None:
    assert [message for message in messages() if len(_words(message)) < FEWEST_WORDS] == []


def _words(message: str) -> list[str]:
    return re.findall(r"\w{2,}", message.replace(GAP, " "))


# The rule itself, seen red.


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no room in … for …", True),
        ("no room in …", True),
        ("for … ranks", True),
        ("no space in … for …", False),
        ("for … in …", False),
        ("no room in the group", False),
        ("what it promises", False),
    ],
)
def test_a_message_whose_wording_has_changed_is_seen(message: str, expected: bool) -> None:
    source = '''
def refuse(group):
    """Says what it promises."""
    raise ValueError(f"no room in {group} " f"for {group.size} ranks")
'''
    assert is_said(message, frozenset(templates(source))) is expected
