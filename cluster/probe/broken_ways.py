"""Whom to do without where ranks do not reach each other. Pure."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

# A rank that does not reach another one.
Way = tuple[int, int]


def ends_to_leave(ways: Iterable[Way]) -> list[int]:
    """Returns ranks without which no broken way is left: that of most ways first, of equal ones the higher
    number.
    """
    left, found = {*ways}, []
    while left:
        counts = Counter(chain(*left))
        found.append(max(counts, key=lambda rank: (counts[rank], rank)))
        left = {way for way in left if found[-1] not in way}
    return found
