"""A bounded folder on a node's own disk, shared by its ranks, into which shards are brought from a store.

Each is compared with its SHA-256 on the way, and only a file of the right size counts as brought: others are
brought again. What is not there is read from the store. Parquet is decoded here, so it has to fit. Deleting
the folder costs time and nothing else.
"""

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkpointing.stores.contract import Missing, Store, StoreError
from checkpointing.stores.local import LocalStore
from jobs.training.task.token_index import DTYPE_BYTES, DataError, TokenIndex, TokenShard

PARQUET = ".parquet"
_READ_BYTES = 8 * 2**20


class NearShards:
    """Read like a store. ``limit_bytes`` bounds the folder, with what other data has left there. A ``~`` in
    front of it is this node's home.
    """

    def __init__(self, store: Store, index: TokenIndex, folder: Path, limit_bytes: int) -> None:
        self.url = store.url
        self._store = store
        self._width = DTYPE_BYTES[index.dtype]
        self._num_bytes = {shard.name: shard.num_tokens * self._width for shard in index.shards}
        # With another limit other shards fit: their folder is another one, and this one then makes room.
        whose = f"{store.url} {index.digest} {limit_bytes}"
        self._home = folder.expanduser() / hashlib.sha256(whose.encode()).hexdigest()[:16]
        self._near = LocalStore(self._home)
        self._limit_bytes = limit_bytes
        self._fitting = self._that_fit(index)
        self._problem: DataError | None = None

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """As a store's. Raises what was found wrong with any shard that was brought here."""
        if self._problem:
            raise self._problem
        if self._is_brought(name):
            with suppress(Missing):  # Removed since, to make room.
                return self._near.get_range(name, start, into)
        if not name.endswith(PARQUET):
            return self._store.get_range(name, start, into)
        if name not in self._fitting:
            raise DataError(
                f"data: {self.url}/{name}: its decoded ids don't fit in data.local.gib "
                f"({self._limit_bytes / 2**30:g} GiB); allow more, or make .bin shards of them"
            )
        self._bring(self._fitting[name])
        return self._near.get_range(name, start, into)

    def bring_all(self) -> threading.Thread:
        """In the background, what fits, in the order of the index. One rank of a node calls it."""
        self._make_room()
        thread = threading.Thread(target=self._bring_each, name="near shards", daemon=True)
        thread.start()
        return thread

    def _that_fit(self, index: TokenIndex) -> dict[str, TokenShard]:
        fitting, room = {}, self._limit_bytes
        for shard in index.shards:
            room -= self._num_bytes[shard.name]
            if room < 0:
                break
            fitting[shard.name] = shard
        return fitting

    def _make_room(self) -> None:
        """Whose folder was used longest ago goes first; its reader goes back to the store."""
        needed = sum(self._num_bytes[name] for name in self._fitting)
        with suppress(OSError):  # Another run of this node tidies at the same time.
            self._home.mkdir(parents=True, exist_ok=True)
            os.utime(self._home)
            others = [path for path in self._home.parent.iterdir() if path != self._home]
            for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
                needed += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                if needed > self._limit_bytes:
                    shutil.rmtree(path, ignore_errors=True)

    def _bring_each(self) -> None:
        try:
            for shard in self._fitting.values():
                self._bring(shard)
        except DataError as error:
            self._problem = error
        except (StoreError, OSError):
            # The store is away or the disk is full: who reads finds out, or needs nothing of it.
            return

    def _bring(self, shard: TokenShard) -> None:
        path = self._home / shard.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            if self._is_brought(shard.name):
                return
            # Always the same, so that what a killed process left there is written over.
            temporary = path.parent / f".{path.name}.tmp"
            try:
                self._copy(shard, temporary)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def _is_brought(self, name: str) -> bool:
        with suppress(OSError):
            return (self._home / name).stat().st_size == self._num_bytes[name]
        return False

    def _copy(self, shard: TokenShard, path: Path) -> None:
        """On the disk before it returns: after a power cut a file's name may be there without its bytes."""
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for data in self._bytes_of(shard):
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Of Parquet it is the footer's, and compared there.
        owner, digest_is = ("footer", None) if shard.name.endswith(PARQUET) else ("index", shard.sha256)
        is_same = digest_is in (None, digest.hexdigest())
        if not is_same or path.stat().st_size != self._num_bytes[shard.name]:
            raise DataError(
                f"data: {self.url}/{shard.name}: its bytes are not those that its {owner} names; "
                "copy it again, or pack the data again"
            )

    def _bytes_of(self, shard: TokenShard) -> Iterator[bytes | memoryview]:
        if shard.name.endswith(PARQUET):
            from jobs.training.data.parquet_tokens import ids_of

            yield from ids_of(self._store, shard)
            return
        buffer = memoryview(bytearray(_READ_BYTES))
        for start in range(0, self._num_bytes[shard.name], _READ_BYTES):
            yield buffer[: self._store.get_range(shard.name, start, buffer)]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One rank of a node brings a shard; the others wait for it. A killed one's lock is gone with it."""
    with (path.parent / f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
