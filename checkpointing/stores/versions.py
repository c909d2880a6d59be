"""Versions of objects: words that tell whether an object is still the one that was looked at before.

An object whose bytes were replaced or changed has another version. So has one that was only touched: a new
version means that somebody has to look again, not that the bytes are others. Stores that can't tell have no
versions; ``versions_of`` then answers None for each.
"""

import os
import re
from typing import Protocol, runtime_checkable

from checkpointing.stores.contract import Store

_OF_A_FILE = re.compile("[0-9]{1,20}-([0-9]{1,20})-([0-9]{1,20})")
_LONGEST_TICK_S = 4.0


@runtime_checkable
class TellsVersions(Protocol):
    """The part of a store that tells versions. Both methods behave as ``size`` and ``get_range`` do."""

    def look(self, name: str) -> tuple[int, str | None]:
        """The size in bytes and the version, with one request that reads none of the bytes."""

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        """As ``get_range``, and the version of the object that the bytes came from."""


def versions_of(store: Store) -> TellsVersions:
    return store if isinstance(store, TellsVersions) else _WithoutVersions(store)


def version_of(found: os.stat_result) -> str:
    """The version of a file. The last of the three can't be set to an earlier time by a program."""
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def is_settled(version: str, now_s: float) -> bool:
    """Whether a change from now on would give the object another version.

    Not so of a file that was changed a moment ago, by the clock of its file system: clocks of file systems
    tick some hundred times a second, old ones every two seconds, and one tick is one version.
    """
    found = _OF_A_FILE.fullmatch(version)
    return found is None or now_s - max(map(int, found.groups())) / 1e9 > _LONGEST_TICK_S


class _WithoutVersions:
    def __init__(self, store: Store) -> None:
        self._store = store

    def look(self, name: str) -> tuple[int, str | None]:
        return self._store.size(name), None

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        return self._store.get_range(name, start, into), None
