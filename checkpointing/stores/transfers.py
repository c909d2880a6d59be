"""Transfers that may take as long as they like, so long as something moves.

No client library bounds a transfer by what it achieves: a total timeout kills slow links, and without one
a hung server holds its caller for minutes. Here the library works in a thread of its own while the caller
looks at the progress, so it gets control back even when the library never does. Plain threads, because
they leave nothing behind: an event loop that foreign threads call back crashes some processes at their end.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stalled(Exception):
    """Nothing moved for too long; the transfer was given up."""


class TransferProgress:
    """A deadline that every call of ``moved`` puts off: ``stall_s`` from the last one, or from the start."""

    def __init__(self, stall_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stall_s = stall_s
        self._clock = clock
        self._moved_at = clock()

    def moved(self) -> None:
        self._moved_at = self._clock()

    def left_s(self) -> float:
        return max(0.0, self._moved_at + self.stall_s - self._clock())


class UploadFeed:
    """A buffer handed out in chunks, each a copy. Once ``close`` returned, no byte of it is read again.

    A library that was given up may go on reading; without the close it would upload what the caller has
    written into the buffer since.
    """

    def __init__(self, data: memoryview, chunk_bytes: int, progress: TransferProgress) -> None:
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


class Download:
    """A buffer that is filled piece by piece. Once ``close`` returned, no byte of it is written again."""

    def __init__(self, into: memoryview, progress: TransferProgress) -> None:
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


def finish(work: Callable[[], Result], progress: TransferProgress) -> Result:
    """What ``work`` comes to; ``Stalled`` as soon as nothing has moved for ``progress.stall_s``.

    It runs in a thread of its own. Work that was given up goes on there until the library lets go, and its
    outcome is dropped; it holds up nobody, not even the end of the process.
    """
    thread, outcome = _start(work)
    while thread.is_alive():
        thread.join(progress.left_s())
        if thread.is_alive() and not progress.left_s():
            raise Stalled(f"nothing moved for {progress.stall_s:g} s")
    return outcome.result()


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item], *, at_once: int) -> Iterator[Result]:
    """What ``work`` comes to for each item, in their order. After a failure no further item is begun."""
    waiting = iter(items)
    running: deque[tuple[threading.Thread, Future[Result]]] = deque()
    for item in islice(waiting, at_once):
        running.append(_start(partial(work, item)))
    while running:
        thread, outcome = running.popleft()
        thread.join()
        yield outcome.result()
        running.extend(_start(partial(work, item)) for item in islice(waiting, 1))


def _start(work: Callable[[], Result]) -> "tuple[threading.Thread, Future[Result]]":
    outcome: Future[Result] = Future()
    thread = threading.Thread(target=_work, args=(work, outcome), daemon=True)
    thread.start()
    return thread, outcome


def _work(work: Callable[[], Result], outcome: "Future[Result]") -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)


Answer = TypeVar("Answer")


def within(timeout_s: float, do: Callable[[], Answer]) -> Answer:
    """What it returns or raises; ``TimeoutError`` once the time is over. It goes on by itself then, in a
    thread of its own that keeps no process alive.
    """
    try:
        return finish(do, TransferProgress(timeout_s))
    except Stalled:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
