"""Mistakes that the user can fix: one line each, with what was expected and the nearest known word. Pure."""

from difflib import get_close_matches

# A list of a thousand wrong values has a problem for each.
_MOST_SHOWN = 40


class SpecError(Exception):
    """The user's input is wrong. Each problem says where, what was found, what was expected, what to do."""

    def __init__(self, problems: list[str]) -> None:
        shown = problems[:_MOST_SHOWN]
        if num_more := len(problems) - len(shown):
            shown.append(f"and {num_more:,} more")
        super().__init__("\n".join(shown))
        self.problems = problems


class Occupied(SpecError):
    """Another driver is working on the run."""


def nearest(word: str, known: list[str]) -> str:
    """A hint such as ``; did you mean 'ddp'?``, or an empty text."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
