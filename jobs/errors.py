"""What a user can do wrong, as a type: the message is one line per mistake, and needs no traceback."""

from difflib import get_close_matches


class SpecError(Exception):
    """The user's turn. Each problem says where, what was found, what was expected, what to do."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def nearest(word: str, known: list[str]) -> str:
    """`` Did you mean 'ddp'?`` or nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
