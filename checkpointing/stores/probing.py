"""Tests whether a store keeps its promises, and how fast it is; then cleans up.

All test objects lie below ``probe/`` and are deleted again, also after a failure. Objects that could not be
deleted are named.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from shutil import disk_usage
from statistics import median

from checkpointing.stores.contract import Conflict, Denied, Missing, Store, StoreError, Unavailable, Undecided
from checkpointing.stores.local import LocalStore
from checkpointing.stores.verbs import VerbAnswer, answers_of

_NUM_RACERS = 8
_NUM_SMALL = 5
# Larger than one part of a multipart upload.
_LARGE_BYTES = 24 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The results of testing a store; facts after a failed step are None.

    - ``winners`` counts how many of the callers that created one name at once succeeded: 1 is right.
    - ``failed`` is the first step that did not work, and why.
    - ``denied`` says whether that step lacked permission.
    - ``free_bytes`` is None if the store reports no limit.
    - ``verbs`` is what each operation answered, tried by itself unless the store is away.
    """

    url: str
    failed: str | None = None
    denied: bool = False
    winners: int | None = None
    reads_what_it_wrote: bool | None = None
    large_is_whole: bool | None = None
    put_s: float | None = None
    get_s: float | None = None
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    free_bytes: int | None = None
    left_behind: tuple[str, ...] = ()
    verbs: tuple[VerbAnswer, ...] = ()


def examine(store: Store, *, deadline_s: float) -> StoreFacts:
    """Returns within the deadline, whatever the store does: a store that hangs is a finding too."""
    trial = _Trial(store)
    thread = threading.Thread(target=trial.run, name="store-probe", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        failed = trial.found.failed or f"{trial.step}: no answer within {deadline_s:g} s"
        return replace(trial.found, failed=failed)
    return trial.found


def num_winners(store: Store, name: str, num_racers: int) -> int:
    """Lets several threads create one name at the same moment; returns how many succeeded.

    None may have, as far as the store knows: a repeated request can be refused by what the first one wrote.
    """
    start = threading.Barrier(num_racers)
    errors: list[Exception] = []

    def take_part() -> None:
        start.wait()
        try:
            # Each thread writes its own bytes, by which a store tells whose object it is.
            store.create(name, secrets.token_bytes(8))
        except Exception as error:  # Whoever broke off has not won.
            errors.append(error)

    racers = [threading.Thread(target=take_part, daemon=True) for _ in range(num_racers)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    for error in errors:
        if not isinstance(error, Conflict | Undecided):
            raise error
    return num_racers - len(errors)


class _Trial:
    """Runs the tests in order. ``step`` is the current one; ``found`` holds the facts so far."""

    def __init__(self, store: Store) -> None:
        self.step = "first object"
        self.found = StoreFacts(url=store.url)
        self._store = store
        self._folder = f"probe/{secrets.token_hex(8)}"
        self._names: list[str] = []

    def run(self) -> None:
        is_away = False
        try:
            self._try_all()
        except StoreError as error:
            denied = isinstance(error, Denied)
            is_away = isinstance(error, Unavailable) and not denied
            self.found = replace(self.found, failed=f"{self.step}: {error}", denied=denied)
        self._clean_up()
        if not is_away:
            self._each_by_itself()

    def _each_by_itself(self) -> None:
        for answer in answers_of(self._store, f"{self._folder}/verbs", self._begin):
            self.found = replace(self.found, verbs=(*self.found.verbs, answer))

    def _begin(self, step: str) -> None:
        self.step = step

    def _try_all(self) -> None:
        self._store.probe()
        self.found = replace(self.found, free_bytes=_free_bytes(self._store))
        self.step = "create"
        self.found = replace(self.found, winners=num_winners(self._store, self._name("race"), _NUM_RACERS))
        self.step = "read after write"
        self.found = replace(self.found, reads_what_it_wrote=self._is_read_back())
        self.step = "small objects"
        self._small()
        self.step = "large object"
        self._large()

    def _is_read_back(self) -> bool:
        """Checks that an object reads back when new and when replaced, is listed, and is gone once
        deleted.
        """
        name = self._name("written")
        for data in (b"first", b"second"):
            self._store.put(name, data)
            if self._store.get(name) != data:
                return False
        listed = name in set(self._store.list(self._folder))
        self._store.delete(name)
        with suppress(Missing):
            self._store.get(name)
            return False
        return listed

    def _small(self) -> None:
        puts, gets = [], []
        for number in range(_NUM_SMALL):
            name = self._name(f"small-{number}")
            puts.append(_seconds(partial(self._store.put, name, bytes(1024))))
            gets.append(_seconds(partial(self._store.get, name)))
        self.found = replace(self.found, put_s=median(puts), get_s=median(gets))

    def _large(self) -> None:
        name, data = self._name("large"), secrets.token_bytes(_LARGE_BYTES)
        into = memoryview(bytearray(_LARGE_BYTES))
        write_s = _seconds(partial(self._store.put, name, data))
        read_s = _seconds(partial(self._store.get_range, name, 0, into))
        self.found = replace(
            self.found,
            large_is_whole=into == data,
            write_bytes_per_s=_LARGE_BYTES / write_s,
            read_bytes_per_s=_LARGE_BYTES / read_s,
        )

    def _clean_up(self) -> None:
        left = []
        for name in self._names:
            try:
                self._store.delete(name)
            except StoreError:
                left.append(name)
        # If nothing could be written, nothing is left behind.
        if left and self.found.winners is not None:
            self.found = replace(self.found, left_behind=tuple(left))

    def _name(self, last: str) -> str:
        self._names.append(f"{self._folder}/{last}")
        return self._names[-1]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _free_bytes(store: Store) -> int | None:
    return disk_usage(store.root).free if isinstance(store, LocalStore) else None


@contextmanager
def marker(store: Store) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of an object that exists during the block. A process that can read it
    uses the same store.
    """
    name, data = f"probe/{secrets.token_hex(8)}", secrets.token_hex(16).encode()
    store.put(name, data)
    try:
        yield name, data
    finally:
        store.delete(name)
