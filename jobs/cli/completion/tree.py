"""The words of a command line, read from its parser: commands, flags, and what a flag takes. Pure."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """``names`` are its spellings. ``choices`` is empty if it takes any value, or none at all."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What may follow the words ``path``: further ``commands`` with their help, or ``words`` and files."""

    path: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def key(self) -> str:
        return " ".join(self.path)


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    """Yields the parser's own level, then those below it, in the order of the help."""
    actions = parser._actions  # argparse has no public way to ask a parser for its flags
    below = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    positional = [action for action in actions if not action.option_strings and action not in below]
    yield Level(
        path=path,
        commands=tuple(
            (str(choice.dest), _plain(choice.help)) for action in below for choice in action._choices_actions
        ),
        words=tuple(str(word) for action in positional for word in action.choices or ()),
        flags=tuple(_flag(action) for action in actions if action.option_strings and _is_shown(action)),
    )
    for action in below:
        for name, child in action.choices.items():
            yield from levels(child, (*path, name))


def _flag(action: argparse.Action) -> Flag:
    return Flag(
        names=tuple(action.option_strings),
        takes_value=action.nargs != 0,
        choices=tuple(str(choice) for choice in action.choices or ()),
        help=_plain(action.help),
    )


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS


def _plain(text: str | None) -> str:
    """Help as one line without what a shell could read as more than text."""
    return re.sub(r"[^\w ,.;:/=()+-]", "", " ".join((text or "").replace("%%", " percent").split()))
