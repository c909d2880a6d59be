"""Which paths fit a shell's pattern: ``*``, ``?`` and ``[...]`` in a name, ``**`` for folders. Pure.

A stranger's pattern takes no longer than its length times the path's.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def fits(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path fits; both are given by their parts."""
    # Which beginnings of the path fit the pattern so far, by their numbers of parts.
    begins = {0}
    for number, part in enumerate(pattern):
        if part == "**":
            is_last = number == len(pattern) - 1
            begins = set(range(min(begins) + is_last, len(path) + 1)) if begins else begins
        else:
            begins = {at + 1 for at in begins if at < len(path) and fnmatchcase(path[at], part)}
    return len(path) in begins
