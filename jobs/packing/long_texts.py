"""Gives long documents to a tokenizer in parts whose ids together are those of the whole.

A tokenizer needs some hundred bytes of memory per character that it gets at once. Most tokenizers never join
what stands on the two sides of a word's beginning, but some do. So a place is taken only if the text around
it has the same ids cut there as whole. A document that is long and has no such place is refused.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from jobs.packing.documents import Text
from jobs.packing.pieces import InputError

PART_CHARACTERS = 2**20
# What a tokenizer gets at most: it then takes some 500 MB.
MOST_CHARACTERS = 4 * 2**20
# How much is looked at on each side of a place, and how many places are tried, how far apart.
_AROUND = 512
_MOST_TRIES = 64
_REACH = 2**16


class HasIds(Protocol):
    def ids(self, text: str) -> Sequence[int]: ...


class Parts:
    """Joins the texts of a document and cuts them where the tokenizer allows it."""

    def __init__(self, tokenizer: HasIds) -> None:
        self._tokenizer = tokenizer
        self._rest = ""

    def is_whole(self, text: Text) -> bool:
        """Whether ``text`` is a document of its own that is not cut."""
        return text.is_end and not self._rest and len(text.text) < PART_CHARACTERS

    def ids(self, text: Text) -> Iterator[Sequence[int]]:
        """The ids that are certain once ``text`` was added. Raises ``InputError`` if it can't be cut."""
        self._rest += text.text
        while len(self._rest) >= PART_CHARACTERS + _REACH:
            if (at := self._place()) is None:
                if len(self._rest) > MOST_CHARACTERS:
                    raise InputError(
                        f"{text.where}: has more than {MOST_CHARACTERS:,} characters without a place where "
                        "the tokenizer lets them be cut; split or remove it"
                    )
                break
            yield self._tokenizer.ids(self._rest[:at])
            self._rest = self._rest[at:]
        if text.is_end:
            yield from self.close()

    def close(self) -> Iterator[Sequence[int]]:
        if self._rest:
            yield self._tokenizer.ids(self._rest)
        self._rest = ""

    def _place(self) -> int | None:
        """The last place in reach at which a part may end."""
        rest = self._rest
        for end in range(PART_CHARACTERS + _REACH, min(len(rest), MOST_CHARACTERS) + 1, PART_CHARACTERS // 2):
            tries = 0
            for at in range(end - _AROUND, end - _REACH, -1):
                if _is_word(rest[at - 1]) == _is_word(rest[at]):
                    continue
                if self._is_fit(at):
                    return at
                tries += 1
                if tries == _MOST_TRIES:
                    break
        return None

    def _is_fit(self, at: int) -> bool:
        before, after = self._rest[at - _AROUND : at], self._rest[at : at + _AROUND]
        ids = self._tokenizer.ids
        return [*ids(before), *ids(after)] == [*ids(before + after)]


def _is_word(character: str) -> bool:
    return character.isalnum()
