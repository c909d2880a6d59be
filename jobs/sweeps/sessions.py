"""A sweep's sessions: each is what one start measures, with the starts that finish it. Pure.

Runs of one session share its day and its machines' state. ``--again`` begins another session: as many further
repeats of every cell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Of a description that somebody else may have written.
_MOST_SESSIONS, _MOST_REPEATS = 1_000, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """``first`` is the number of its first repeat."""

    number: int
    first: int
    num_repeats: int

    @property
    def repeats(self) -> range:
        return range(self.first, self.first + self.num_repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """All sessions, the first one first. Their repeats never overlap."""

    found: tuple[Session, ...]

    @classmethod
    def first(cls, num_repeats: int) -> "Sessions":
        return cls(found=(Session(number=1, first=1, num_repeats=num_repeats),))

    @classmethod
    def of(cls, stored: Any, num_repeats: int) -> "Sessions":
        """``stored`` is what ``as_data`` gave to an earlier start; whatever else it may be, there is one
        session. The last session has as many repeats as the spec says now: a spec may be extended.
        """
        read = list(_read(stored))
        if not read:
            return cls.first(num_repeats)
        *earlier, (first, _) = read
        counts = [*earlier, (first, num_repeats)]
        return cls(
            found=tuple(
                Session(number=number, first=first, num_repeats=count)
                for number, (first, count) in enumerate(counts, start=1)
            )
        )

    def again(self, highest: int) -> "Sessions":
        """Adds a session behind the ``highest`` repeat that was ever measured."""
        last = self.found[-1]
        first = max(last.first + last.num_repeats, highest + 1)
        added = Session(number=last.number + 1, first=first, num_repeats=last.num_repeats)
        return Sessions(found=(*self.found, added))

    def repeats(self) -> Iterator[tuple[int, int]]:
        """Yields each repeat with the number of its session."""
        for session in self.found:
            yield from ((repeat, session.number) for repeat in session.repeats)

    def as_data(self) -> list[list[int]]:
        return [[session.first, session.num_repeats] for session in self.found]


def _read(stored: Any) -> Iterator[tuple[int, int]]:
    """Yields the first repeat and the number of repeats of each session; nothing if they can't be true."""
    if not isinstance(stored, list) or not 0 < len(stored) <= _MOST_SESSIONS:
        return
    end = 0
    for pair in stored:
        match pair:
            case [int(first), int(count)] if end < first <= _MOST_REPEATS and 0 < count <= _MOST_REPEATS:
                end = first + count - 1
            case _:
                return
    yield from ((first, count) for first, count in stored)
