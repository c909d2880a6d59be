"""Lays conversations into rows of one length, so that none is cut and little room is left over. Pure.

A conversation goes into the open row that it fills best. What is left of a row is filled with tokens that
nothing learns from. The same conversations in the same order give the same rows.
"""

from array import array
from collections.abc import Iterable, Sequence

from jobs.training.task.token_index import BEGINS, TRAINED

# More open rows fill better, and take longer to choose from.
_MOST_OPEN = 64
_FILLER = 0


class Rows:
    """``tokens`` are those of all rows that are closed, each with its flags."""

    def __init__(self, seq_len: int) -> None:
        self.tokens = array("I")
        self._seq_len = seq_len
        self._open: list[array[int]] = []

    def add(self, conversation: Sequence[int]) -> None:
        """Adds the tokens of ``conversation``, at most as many as a row has."""
        fitting = [row for row in self._open if len(row) + len(conversation) <= self._seq_len]
        row = max(fitting, key=len) if fitting else self._opened()
        row.extend(conversation)
        if len(row) == self._seq_len:
            self._close(row)

    def close(self) -> None:
        for row in list(self._open):
            self._close(row)

    def _opened(self) -> "array[int]":
        if len(self._open) == _MOST_OPEN:
            self._close(max(self._open, key=len))
        self._open.append(array("I"))
        return self._open[-1]

    def _close(self, row: "array[int]") -> None:
        self._open = [other for other in self._open if other is not row]
        if missing := self._seq_len - len(row):
            row.extend([_FILLER | BEGINS, *[_FILLER] * (missing - 1)])
        self.tokens.extend(row)


def flagged(ids: Sequence[int], mask: Iterable[bool]) -> list[int]:
    """The ids with their flags. The first token of a conversation is predicted from nothing, so never."""
    words = [number | TRAINED if is_trained else number for number, is_trained in zip(ids, mask, strict=True)]
    words[0] = ids[0] | BEGINS
    return words
