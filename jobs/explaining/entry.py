"""An explanation of a word, and how a word is found among many. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

_MOST_HINTS = 4


# The meaning of each word, and what to do where something is to be done.
Texts = Mapping[str, tuple[str, str] | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``kind`` says what the word names, such as ``status of a cell``. ``advice`` may be empty."""

    word: str
    kind: str
    meaning: str
    advice: str = ""


def entries(kind: str, texts: Texts) -> Iterator[Entry]:
    for word, text in texts.items():
        meaning, advice = (text, "") if isinstance(text, str) else text
        yield Entry(word=word, kind=kind, meaning=meaning, advice=advice)


def plain(word: str) -> str:
    """The word as it is looked up: case, underscores and quotes make no difference."""
    return " ".join(re.sub(r"[_\-`'\"]+", " ", word.casefold()).split())


def find(word: str, known: Iterable[Entry]) -> tuple[Entry, ...]:
    """All that is called so. Several things may have one name, such as an alarm and a stage."""
    wanted = plain(word)
    return tuple(entry for entry in known if plain(entry.word) == wanted)


def similar(word: str, known: Iterable[Entry]) -> Sequence[str]:
    """Words that may have been meant, the nearest first."""
    words = list(dict.fromkeys(entry.word for entry in known))
    by_plain = {plain(one): one for one in words}
    wanted = plain(word)[:100]
    near = get_close_matches(wanted, by_plain, n=_MOST_HINTS, cutoff=0.6)
    within = [one for one in by_plain if len(wanted) > 2 and wanted in one and one not in near]
    return [by_plain[one] for one in (*near, *within)][:_MOST_HINTS]
