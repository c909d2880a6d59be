"""Tries every operation of a store by itself: what each answered, and how long that took.

One that is refused keeps none of the others from being tried. What was written is deleted at the end.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from checkpointing.stores.contract import Conflict, Missing, Store, StoreError, abandoned_uploads

# Larger than what goes in one request.
_LARGE_BYTES = 9 << 20
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbAnswer:
    """``refused`` is empty where the store did it."""

    verb: str
    took_s: float
    refused: str = ""


def answers_of(store: Store, folder: str, begins: Callable[[str], None]) -> Iterator[VerbAnswer]:
    """Yields one answer for each operation, below ``folder``; ``begins`` is told which one comes next."""
    verbs = _Verbs(store, folder)
    try:
        for verb, do in verbs.all().items():
            begins(verb)
            yield verbs.tried(verb, do)
    finally:
        verbs.clean_up()


class _Verbs:
    """Names in the order of a listing. What was created is there for the operations after it."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._gone, self._large, self._parts, self._small = self._names = [
            f"{folder}/{name}" for name in ("gone", "large", "parts", "small")
        ]

    def tried(self, verb: str, do: Callable[[], object]) -> VerbAnswer:
        start, refused = time.perf_counter(), ""
        try:
            do()
        except StoreError as error:
            refused = self._without_names(str(error))
        return VerbAnswer(verb=verb, took_s=time.perf_counter() - start, refused=refused)

    def all(self) -> dict[str, Callable[[], object]]:
        store, small = self._store, self._small
        return {
            "create": lambda: store.create(small, b"12"),
            "create what exists": self._create_again,
            "create, large": lambda: store.create(self._large, secrets.token_bytes(_LARGE_BYTES)),
            "put, in parts": lambda: store.put(self._parts, bytes(_LARGE_BYTES)),
            "put over": lambda: store.put(small, b"34"),
            "get": lambda: _must(store.get(small) == b"34", "get returns other bytes than were put"),
            "get a range": lambda: self._range(1, b"4"),
            "get from the end on": lambda: self._range(2, b""),
            "get what is missing": self._get_missing,
            "size": lambda: _must(store.size(small) == 2, "the size is not that of what was put"),
            "list": lambda: self._lists(small),
            "list after a name": lambda: self._lists(small, after=self._parts),
            "list uploads": lambda: abandoned_uploads(store, self._folder, before=_LONG_AGO),
            "delete": lambda: store.delete(small),
            "delete what is gone": lambda: store.delete(self._gone),
        }

    def clean_up(self) -> None:
        for name in self._names:
            with suppress(StoreError):
                self._store.delete(name)

    def _without_names(self, told: str) -> str:
        """Equal answers for several names have equal words."""
        for name in self._names:
            told = told.replace(f"{name}: ", "")
        return told

    def _create_again(self) -> None:
        with suppress(Conflict):
            self._store.create(self._small, b"56")
            _must(False, "an object was replaced that was there already")

    def _range(self, start: int, expected: bytes) -> None:
        into = bytearray(4)
        count = self._store.get_range(self._small, start, memoryview(into))
        _must(into[:count] == expected, "a range has other bytes than were put")

    def _get_missing(self) -> None:
        with suppress(Missing):
            self._store.get(self._gone)
            _must(False, "an object was read that is not there")

    def _lists(self, name: str, *, after: str = "") -> None:
        _must(name in set(self._store.list(self._folder, after=after)), "what was put is not listed")


def _must(is_right: bool, wrong: str) -> None:
    if not is_right:
        raise StoreError(f"store: {wrong}")
