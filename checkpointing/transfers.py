"""Transfers that may take as long as they like, so long as something moves.

No client library bounds a transfer by what it achieves: a total timeout kills slow links, and without one
a hung server holds its caller for minutes. Here the caller waits in its own thread and looks at the
progress, so it gets control back even when the library never does.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stalled(Exception):
    """Nothing moved for too long; the transfer was given up."""


class Progress:
    """A deadline that every call of ``moved`` puts off: ``stall_s`` from the last one, or from the start."""

    def __init__(self, stall_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stall_s = stall_s
        self._clock = clock
        self._moved_at = clock()

    def moved(self) -> None:
        self._moved_at = self._clock()

    def left_s(self) -> float:
        return max(0.0, self._moved_at + self.stall_s - self._clock())


class Feed:
    """A buffer handed out in chunks, each a copy. Once ``close`` returned, no byte of it is read again.

    A library that was given up may go on reading; without the close it would upload what the caller has
    written into the buffer since.
    """

    def __init__(self, data: memoryview, chunk_bytes: int, progress: Progress) -> None:
        self._rest = data
        self._chunk_bytes = chunk_bytes
        self._progress = progress
        self._lock = threading.Lock()
        self._is_open = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            if not self._is_open:
                raise Stalled("the transfer was given up")
            if not self._rest:
                raise StopIteration
            chunk = bytes(self._rest[: self._chunk_bytes])
            self._rest = self._rest[self._chunk_bytes :]
        self._progress.moved()
        return chunk

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._rest = memoryview(b"")


class Landing:
    """A buffer that is filled piece by piece. Once ``close`` returned, no byte of it is written again."""

    def __init__(self, into: memoryview, progress: Progress) -> None:
        self._into = into
        self._progress = progress
        self._lock = threading.Lock()
        self._is_open = True

    def write(self, start: int, piece: bytes) -> int:
        with self._lock:
            if not self._is_open:
                raise Stalled("the transfer was given up")
            self._into[start : start + len(piece)] = piece
        self._progress.moved()
        return len(piece)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._into = memoryview(b"")


def finish(work: Coroutine[Any, Any, Result], progress: Progress) -> Result:
    """What ``work`` comes to; ``Stalled`` as soon as nothing has moved for ``progress.stall_s``.

    Work that was given up is cancelled and not waited for.
    """
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        while not wait([future], timeout=progress.left_s()).done:
            if not progress.left_s():
                raise Stalled(f"nothing moved for {progress.stall_s:g} s")
        return future.result()
    finally:
        future.cancel()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop in a thread of its own, for all transfers of this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="transfers", daemon=True).start()
    return loop
