"""Waits for a store that is away: repeats a call after longer and longer waits, within a budget.

An answer that is neither yes nor no is asked again until the call's own deadline. It never counts as
another writer's success. Only the object shows what ``create`` did, whatever the answer was: 409, 412, 5xx,
a broken connection or none. The object is the caller's, another writer's, or missing, and then it is
created again.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import (
    Buffer,
    Conflict,
    Denied,
    Full,
    Missing,
    Store,
    Unavailable,
    Undecided,
    Upload,
    abandoned_uploads,
    abort_uploads,
)
from checkpointing.stores.versions import ListsVersions, Look, versions_of

# Not the process's own generator: a training draws from that, and its state is saved.
_spread = random.SystemRandom().random
_log = logging.getLogger(__name__)
_AGAIN = "%s; again in %.0f s, given up in %.0f s"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Waits double from ``first_wait_s`` to ``longest_wait_s``; no call begins after ``budget_s``.

    The budget counts from the first failure, so a long transfer that fails at its end is tried again. With
    ``is_from_start`` it counts from the call, for people who wait for the answer. ``advice`` then says how
    they have it wait longer.
    """

    budget_s: float = 300
    first_wait_s: float = 0.5
    longest_wait_s: float = 30
    is_from_start: bool = False
    advice: str = ""

    def wait_s(self, num_failures: int, spread: float) -> float:
        """Returns the seconds before the next attempt. ``spread`` in [0, 1) separates callers that failed
        together.
        """
        longest = self.first_wait_s
        for _ in range(num_failures - 1):
            longest = min(2 * longest, self.longest_wait_s)
        return longest * (1 + spread) / 2


class Waiter:
    """Repeats a call until it succeeds or its budget is spent.

    ``Full`` and ``Denied`` are raised at once, because waiting cures neither.
    """

    def __init__(
        self,
        patience: RetryLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        spread: Callable[[], float] = _spread,
    ) -> None:
        self._patience = patience or RetryLimits()
        self._clock = clock
        self._sleep = sleep
        self._spread = spread

    def wait_out(self, do: Callable[[], Answer], what: type[Unavailable] = Unavailable) -> Answer:
        """Returns the answer, or raises ``Unavailable`` once the budget is spent. Errors other than
        ``what`` are raised at once.
        """
        num_failures = 0
        is_from_start = self._patience.is_from_start
        gives_up_at = self._clock() + self._patience.budget_s if is_from_start else float("inf")
        while True:
            try:
                return do()
            except (Full, Denied):
                raise
            except what as error:
                num_failures += 1
                gives_up_at = min(gives_up_at, self._clock() + self._patience.budget_s)
                wait_s = self._patience.wait_s(num_failures, self._spread())
                left_s = gives_up_at - self._clock()
                if wait_s > left_s:
                    raise Unavailable(f"{error} ({self._tried(num_failures)})") from error
                _log.info(_AGAIN, error, wait_s, left_s, extra={"wait_s": wait_s})
            self._sleep(wait_s)

    def _tried(self, num_failures: int) -> str:
        times = "once" if num_failures == 1 else f"{num_failures} times"
        return f"tried {times}; {self._patience.advice}" if self._patience.advice else f"tried {times}"


def create_once(store: Store, name: str, data: Buffer, *, most_bytes: int) -> Buffer | None:
    """Creates ``name`` unless it exists; returns the bytes that are there now. They are ``data`` if this
    caller won, and None if they are more than ``most_bytes``, which are not read.

    Raises ``Undecided`` if the name was refused as taken, but nothing is there.
    """
    with suppress(Conflict):
        store.create(name, data)
        return data
    try:
        return get_bounded(store, name, most_bytes=most_bytes)
    except TooLarge:
        return None
    except Missing:
        raise Undecided(
            f"store: {store.url}: {name} was refused as taken, but is not there; it may work again later"
        ) from None


class RetryingStore:
    """Waits out every ``Unavailable`` of the store ``inner``.

    - ``create`` returns once the object is exactly what was to be created. It raises ``Conflict`` only
      after another writer's object was seen. Two callers that create the same bytes are not told apart.
    - ``list`` and ``contents`` collect all names before they yield the first.
    - ``probe`` repeats only after an answer that is neither yes nor no, because its caller asks about the
      present state.
    """

    def __init__(
        self,
        inner: Store,
        patience: RetryLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        spread: Callable[[], float] = _spread,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self._versions = versions_of(inner)
        self._wait_out = Waiter(patience, clock=clock, sleep=sleep, spread=spread).wait_out

    def probe(self) -> None:
        self._wait_out(self.inner.probe, Undecided)

    def put(self, name: str, data: Buffer) -> None:
        self._wait_out(lambda: self.inner.put(name, data))

    def create(self, name: str, data: Buffer) -> None:
        if self._wait_out(lambda: create_once(self.inner, name, data, most_bytes=len(data))) != data:
            raise Conflict(f"store: {self.url}: {name} exists already")

    def get(self, name: str) -> bytes:
        return self._wait_out(lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return self._wait_out(lambda: self.inner.get_range(name, start, into))

    def size(self, name: str) -> int:
        return self._wait_out(lambda: self.inner.size(name))

    def look(self, name: str) -> tuple[int, str | None]:
        return self._wait_out(lambda: self._versions.look(name))

    def look_at_all(self) -> Mapping[str, Look] | None:
        inner = self.inner
        return self._wait_out(inner.look_at_all) if isinstance(inner, ListsVersions) else None

    def read(self, name: str, start: int, into: memoryview) -> tuple[int, str | None]:
        return self._wait_out(lambda: self._versions.read(name, start, into))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        yield from self._wait_out(lambda: [*self.inner.list(prefix, after=after)])

    def contents(self) -> Iterator[str]:
        yield from self._wait_out(lambda: [*self.inner.contents()])

    def delete(self, name: str) -> None:
        self._wait_out(lambda: self.inner.delete(name))

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        return self._wait_out(lambda: abandoned_uploads(self.inner, prefix, before=before))

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        self._wait_out(lambda: abort_uploads(self.inner, uploads))
