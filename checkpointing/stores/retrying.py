"""Waiting out a store that is away: the same call again, after longer and longer waits, within a budget."""

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from checkpointing.stores.contract import (
    Buffer,
    Denied,
    Full,
    Store,
    Unavailable,
    Upload,
    abandoned_uploads,
    abort_uploads,
)

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Waits double from ``first_wait_s`` to ``longest_wait_s``; nothing is begun after ``budget_s``.

    The budget counts from the first failure, so that a long transfer which fails at its end is tried again.
    """

    budget_s: float = 300
    first_wait_s: float = 0.5
    longest_wait_s: float = 30

    def wait_s(self, num_failures: int, spread: float) -> float:
        """Before the next attempt. ``spread`` in [0, 1) keeps those who failed together apart."""
        longest = self.first_wait_s
        for _ in range(num_failures - 1):
            longest = min(2 * longest, self.longest_wait_s)
        return longest * (1 + spread) / 2


class PatientStore:
    """``inner``, whose ``Unavailable`` is waited out, but not ``Full`` and ``Denied``: time mends neither.

    ``create``: if an attempt landed and its answer was lost, the next one finds the name taken by itself and
    raises ``Conflict``. Only the caller can tell: read the object back and see whether it is your own.
    ``list`` and ``contents`` are collected before the first name is given out. ``probe`` is not repeated:
    whoever asks wants to know how things are now.
    """

    def __init__(
        self,
        inner: Store,
        patience: Patience | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self._patience = patience or Patience()
        self._clock = clock
        self._sleep = sleep
        self._spread = spread

    def probe(self) -> None:
        self.inner.probe()

    def put(self, name: str, data: Buffer) -> None:
        self._wait_out(lambda: self.inner.put(name, data))

    def create(self, name: str, data: Buffer) -> None:
        self._wait_out(lambda: self.inner.create(name, data))

    def get(self, name: str) -> bytes:
        return self._wait_out(lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        return self._wait_out(lambda: self.inner.get_range(name, start, into))

    def size(self, name: str) -> int:
        return self._wait_out(lambda: self.inner.size(name))

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

    def _wait_out(self, do: Callable[[], Answer]) -> Answer:
        num_failures = 0
        gives_up_at = float("inf")
        while True:
            try:
                return do()
            except (Full, Denied):
                raise
            except Unavailable as error:
                num_failures += 1
                gives_up_at = min(gives_up_at, self._clock() + self._patience.budget_s)
                wait_s = self._patience.wait_s(num_failures, self._spread())
                if self._clock() + wait_s > gives_up_at:
                    raise Unavailable(f"{error} (tried {num_failures} times)") from error
                _log.info("%s; again in %.1f s", error, wait_s)
            self._sleep(wait_s)
