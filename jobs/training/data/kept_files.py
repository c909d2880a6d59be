"""Local files that stay open between reads, so that a sample costs one call to the system.

The bytes are those of the version that is told with them: it is asked for behind the reading. A file that was
replaced or removed has another version from then on, even while it is open.
"""

import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO

from checkpointing.stores.contract import StoreError
from checkpointing.stores.versions import version_of
from jobs.training.task.token_index import DataError

# Of all sources together. Where a process may have less than 1,024, as is usual, a quarter of that.
_MOST_OPEN = 256
# Network file systems look for what other nodes changed when a file is opened, and later only now and then.
_ANEW_AFTER_S = 1.0

# Where in a file bytes begin, and the room for them.
Piece = tuple[int, memoryview]


def fair_share(num_sources: int) -> int:
    """Returns how many files one of ``num_sources`` may keep open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN if allowed == resource.RLIM_INFINITY else min(_MOST_OPEN, allowed // 4)
    return max(1, most // num_sources)


class KeptFiles:
    """At most ``most`` files, which ``open_file`` opens by name. Several threads may read at once."""

    def __init__(
        self,
        open_file: Callable[[str], FileIO],
        most: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_file = open_file
        self._most = most
        self._now = now
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def fill(self, name: str, pieces: Sequence[Piece]) -> str | None:
        """Fills pieces, and returns the version of the file that their bytes are of; None if that failed for
        whatever reason. Whoever then reads as usual is told the reason.
        """
        try:
            kept = self._kept.get(name)
            if kept is None or self._now() - kept.opened_s > _ANEW_AFTER_S:
                kept = self._opened(name)
            for start, into in pieces:
                if os.preadv(kept.descriptor, [into], start) < len(into):
                    return None
            return version_of(os.fstat(kept.descriptor))
        except (OSError, StoreError, DataError):
            return None

    def _opened(self, name: str) -> "_Kept":
        with self._lock:
            # First of all: a file that was removed takes room on its disk as long as it is open.
            self._kept.pop(name, None)
        file = self._open_file(name)
        kept = _Kept(descriptor=file.fileno(), opened_s=self._now())
        # Not before the last thread that reads from it has let go: its number might be another file's then.
        weakref.finalize(kept, file.close)
        with self._lock:
            self._kept[name] = kept
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return kept


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class _Kept:
    descriptor: int
    opened_s: float
