"""What a user has to know of what went wrong, as types: their messages need no traceback."""

from collections.abc import Sequence
from difflib import get_close_matches


class SpecError(Exception):
    """The user's turn. Each problem says where, what was found, what was expected, what to do."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AttemptFailed(Exception):
    """``reason`` is the first thing that went wrong on any rank; ``log_tail`` what that rank said last."""

    def __init__(self, reason: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__("\n  ".join([reason, *log_tail]))
        self.reason = reason
        self.log_tail = tuple(log_tail)


def nearest(word: str, known: list[str]) -> str:
    """`` Did you mean 'ddp'?`` or nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
