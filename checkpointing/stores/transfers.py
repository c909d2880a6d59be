"""Transfers that may last as long as something moves.

No client library bounds a transfer by its progress. A total timeout kills slow links; without one, a hung
server holds its caller for minutes. Here the library works in its own thread while the caller watches the
progress, so the caller regains control even if the library never returns.

Plain threads are used because they leave nothing behind. An event loop called back by foreign threads
crashes some processes when they end.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TypeVar

_log = logging.getLogger(__name__)
_SILENT = "%s: no answer for %.0f s, given up in %.0f s"

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stalled(Exception):
    """Nothing moved for too long, and the transfer was given up."""


class TransferProgress:
    """A deadline ``stall_s`` after the last call of ``moved``, or after the start.

    After ``told_after_s`` in which nothing moved, the log says once which ``place`` is waited for and until
    when.
    """

    def __init__(
        self,
        stall_s: float,
        *,
        place: str = "",
        told_after_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stall_s = stall_s
        self._told_after_s = told_after_s
        self._place = place
        self._clock = clock
        self._moved_at = clock()
        self._tells_at = self._moved_at + told_after_s

    def moved(self) -> None:
        self._moved_at = self._clock()
        self._tells_at = self._moved_at + self._told_after_s

    def left_s(self) -> float:
        return max(0.0, self._moved_at + self.stall_s - self._clock())

    def untold_s(self) -> float:
        """Seconds until ``tell`` has something to say."""
        return max(0.0, self._tells_at - self._clock())

    def tell(self) -> None:
        if self._place and not self.untold_s():
            self._tells_at = float("inf")
            silent_s, left_s = self._clock() - self._moved_at, self.left_s()
            _log.info(_SILENT, self._place, silent_s, left_s, extra={"wait_s": left_s})


class LinkRate:
    """The rate at which a link is trusted to move bytes: half of what it last moved, at first a guess.

    A wait that follows from it never ends a slow link for good: it halves each time that nothing moved.
    """

    _LEAST, _MEASURED_BYTES = 1_000.0, 64 << 10
    _SMALLEST_STREAM, _LARGEST_STREAM = 16 << 10, 1 << 20

    def __init__(self, guess: float = 300_000) -> None:
        self._guess = guess
        self.bytes_per_s = guess

    @property
    def stream_bytes(self) -> int:
        """After how many bytes a reader looks up. On a slow link it looks often, as each look is progress."""
        return min(max(int(self.bytes_per_s), self._SMALLEST_STREAM), self._LARGEST_STREAM)

    def takes_s(self, num_bytes: int) -> float:
        return num_bytes / self.bytes_per_s

    def moved(self, num_bytes: int, took_s: float) -> None:
        if num_bytes >= self._MEASURED_BYTES:
            self.bytes_per_s = max(self._LEAST, num_bytes / max(took_s, 1e-6) / 2)

    def stood_still(self) -> None:
        self.bytes_per_s = max(self._LEAST, min(self.bytes_per_s, self._guess) / 2)


class UploadFeed:
    """Hands out a buffer in chunks, each a copy. After ``close`` returns, no byte of the buffer is read
    again.

    A library call that was given up may continue to read. Without the close it would upload what the caller
    has written into the buffer since.
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
    """Fills a buffer piece by piece. After ``close`` returns, no byte of the buffer is written again, and no
    byte of its parts.
    """

    def __init__(self, into: memoryview, progress: TransferProgress) -> None:
        self._into = into
        self._progress = progress
        self._lock = threading.Lock()
        self._is_open = True
        self._parts: list[Download] = []

    def part(self, at: range, progress: TransferProgress) -> "Download":
        """Returns the download of a part, which may be closed and begun again by itself."""
        with self._lock:
            if not self._is_open:
                raise Stalled("the transfer was given up")
            self._parts.append(Download(self._into[at.start : at.stop], progress))
            return self._parts[-1]

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
        for part in self._parts:
            part.close()


def finish(work: Callable[[], Result], progress: TransferProgress) -> Result:
    """Returns or raises the outcome of ``work``; raises ``Stalled`` once nothing moved for
    ``progress.stall_s``.

    ``work`` runs in its own thread. After ``Stalled`` it continues there until the library returns, and its
    outcome is dropped. It delays nothing, not even the end of the process.
    """
    thread, outcome = _start(work)
    while thread.is_alive():
        thread.join(min(progress.left_s(), progress.untold_s() or progress.left_s()))
        if thread.is_alive() and not progress.left_s():
            raise Stalled(f"nothing moved for {progress.stall_s:g} s")
        progress.tell()
    return outcome.result()


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item], *, at_once: int) -> Iterator[Result]:
    """Yields the outcome of ``work`` for each item, in the items' order. After a failure no further item
    begins.
    """
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
    """Returns or raises the outcome of ``do``; raises ``TimeoutError`` after ``timeout_s``.

    ``do`` then continues in its own thread, which keeps no process alive.
    """
    try:
        return finish(do, TransferProgress(timeout_s))
    except Stalled:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
