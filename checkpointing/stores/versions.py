"""Versions of objects: words that tell whether an object is still the one that was looked at before.

An object whose bytes were replaced or changed has another version. So has one that was only touched: a new
version means that somebody has to look again, not that the bytes are others. Stores that can't tell have no
versions; ``versions_of`` then answers None for each.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from checkpointing.stores.contract import Missing, Store, is_name

_OF_A_FILE = re.compile("[0-9]{1,20}-([0-9]{1,20})-([0-9]{1,20})")
_LONGEST_TICK_S = 4.0


@runtime_checkable
class TellsVersions(Protocol):
    """The part of a store that tells versions. Both methods behave as ``size`` and ``get_range`` do."""

    def look(self, name: str) -> tuple[int, str | None]:
        """The size in bytes and the version, with one request that reads none of the bytes."""

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        """As ``get_range``, and the version of the object that the bytes came from."""


# A size in bytes, and a version, as ``look`` returns them.
Look = tuple[int, str | None]


@runtime_checkable
class ListsVersions(Protocol):
    """The part of a store whose listing carries what ``look`` tells."""

    def look_at_all(self) -> Mapping[str, Look] | None:
        """What the listing tells of each object; None if it tells no more than names."""


def look_at_all(store: Store) -> dict[str, Look | None]:
    """All names in the store, each with what ``look`` tells of the object. With None it has to be asked.

    That is so of all where the listing of this store and ``look`` differ in the first object, and of an empty
    object, which may stand for a folder.
    """
    told = store.look_at_all() if isinstance(store, ListsVersions) else None
    if told is None:
        return dict.fromkeys(store.contents())
    found = {name: look if look[0] and look[1] else None for name, look in told.items()}
    first = next((name for name, look in found.items() if look and is_name(name)), None)
    if first is not None:
        with suppress(Missing):
            if versions_of(store).look(first) == found[first]:
                return found
    return dict.fromkeys(found)


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
