"""Whom a node does not reach, and whom to do without where ranks do not reach each other."""

import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

_CONNECT_S = 5.0
_AT_ONCE = 32

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


def ways_between(unreached_by: Mapping[int, Sequence[int]]) -> list[Way]:
    """Returns the broken ways between those that told whom they do not reach. Who told nothing may be gone
    itself: that the others miss it is no broken way.
    """
    return [
        (one, other)
        for one, others in unreached_by.items()
        for other in others
        if other in unreached_by and other != one
    ]


def unreached(places: Sequence[tuple[str, int]]) -> list[int]:
    """Returns the numbers of the places that this process cannot connect to."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [number for number, is_reached in enumerate(pool.map(_reaches, places)) if not is_reached]


def _reaches(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, _CONNECT_S).close()
    except OSError:
        return False
    return True
