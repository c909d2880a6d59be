"""Compares the bytes that ranks read with those that the index names: once per attempt, and when they change.

* Each shard has a version, which the driver asked its store for when the run started (``Tokens.versions``).
* Each rank hashes its share of the shards in the background; all shares together are all shards. The first
  step waits for that if a share is small, so that nothing of a wrong shard is trained on.
* What was hashed is kept with the run, with its version (see ``shard_ledger``). Later attempts hash only
  shards of other versions.
* Each read tells the version of the bytes that it got. If that is another one, the rank hashes the shard
  itself before it uses them. So nothing is hashed twice that nobody has touched.
* A shard whose digest the index does not know, such as a Parquet file, is compared with what the run began
  with.

A difference is never mended here: the attempt ends with the shard's name and both digests.
"""

import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from checkpointing.stores.contract import Missing, Store, StoreError
from checkpointing.stores.local import LocalStore
from checkpointing.stores.versions import is_settled, versions_of
from jobs.training.data.kept_files import KeptFiles, Piece, fair_share
from jobs.training.task.token_index import DECODED, DTYPE_BYTES, DataError, KnownShard, TokenIndex

# The first step waits for shares up to this size: seconds from a disk, half a minute from a store.
WAITED_FOR_BYTES = 2**30
_READ_BYTES = 8 * 2**20
_AGAIN_AFTER_S = 30.0
# A shard that changes while it is read again and again is not fit to be trained on.
_MOST_READS = 3
# Hashing that was not kept is done again by the next attempt.
_KEPT_EVERY_S = 60.0
_INDEX = "its index names"
_Keep = Callable[[Sequence[KnownShard]], None]


class CheckedShards:
    """Shards of a store as a store. ``own`` are the shards that this rank hashes in the background.

    ``versions`` are those of the shards of ``index``, in order; without one the first that is seen counts.
    ``known`` is what earlier attempts found out, and ``keep`` gets all that this rank does, now and then.
    ``num_sources`` are read side by side: what the first step waits for is shared among them.
    """

    def __init__(
        self,
        store: Store,
        index: TokenIndex,
        versions: Sequence[str | None],
        own: Sequence[str],
        known: Sequence[KnownShard] = (),
        keep: _Keep | None = None,
        now: Callable[[], float] = time.time,
        num_sources: int = 1,
    ) -> None:
        self.url = store.url
        self._store = versions_of(store)
        self._kept = (
            KeptFiles(store.open_file, fair_share(num_sources)) if isinstance(store, LocalStore) else None
        )
        self._is_unwanted = threading.Event()
        self._digests = _Digests(store, index, versions, known, self._is_unwanted, now)
        width, wanted = DTYPE_BYTES[index.dtype], frozenset(own)
        num_bytes = sum(shard.num_tokens * width for shard in index.shards if shard.name in wanted)
        is_small = num_bytes * num_sources <= WAITED_FOR_BYTES
        self._own = _Share(self._digests, own, self._is_unwanted, keep, is_small=is_small)
        weakref.finalize(self, self._is_unwanted.set)

    def start(self) -> None:
        """Begins to hash this rank's share. The thread ends with this object."""
        threading.Thread(target=self._own.hash_all, name="shard check", daemon=True).start()

    def confirm(self) -> None:
        """Raises the ``DataError`` of the first shard that was found to be another."""
        if self._digests.problem:
            raise self._digests.problem

    def wait(self, timeout_s: float) -> bool:
        """Whether a step may begin: all of a small share was hashed, now or within ``timeout_s``."""
        return self._own.wait(timeout_s)

    def size(self, name: str) -> int:
        return self._store.look(name)[0]

    def vouches(self, name: str, version: str | None) -> bool:
        """Whether the bytes of this version are right, as far as is known."""
        return self._digests.is_known(name, version)

    def vouched(self, name: str) -> str | None:
        """The present version of a shard, whose bytes are right; None if the store has no versions. Raises
        ``DataError`` if they are others, or change all the time.
        """
        for _ in range(_MOST_READS):
            self.confirm()
            version = self._store.look(name)[1]
            if self._digests.is_right(name, version):
                return version
            self._digests.compare(name)
        raise self._restless(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """As a store's. Raises ``DataError`` if the bytes are of a shard that was found to be another."""
        for _ in range(_MOST_READS):
            self.confirm()
            count, version = self._store.read(name, start, into)
            if self._digests.is_cut(name, start, len(into), count) or self._digests.is_right(name, version):
                return count
            self._digests.compare(name)
        raise self._restless(name)

    def fill(self, name: str, pieces: Sequence[Piece]) -> bool:
        """Whether all pieces were filled from a file on this node, whose bytes are right."""
        version = self._kept.fill(name, pieces) if self._kept and self._digests.problem is None else None
        return version is not None and self._digests.is_right(name, version)

    def _restless(self, name: str) -> DataError:
        return DataError(f"data: {self.url}/{name}: changes while it is read; leave it alone during a run")


class _Unwanted(Exception):
    """The owner is gone, so nobody needs the digest."""


class _Digests:
    """The versions of each shard whose bytes are right, or are about to be compared by some rank."""

    def __init__(
        self,
        store: Store,
        index: TokenIndex,
        versions: Sequence[str | None],
        known: Sequence[KnownShard],
        is_unwanted: threading.Event,
        now: Callable[[], float],
    ) -> None:
        self.problem: DataError | None = None
        self.learnt: dict[str, KnownShard] = {}
        self._now = now
        self._is_unwanted = is_unwanted
        self._url = store.url
        self._store = versions_of(store)
        self._lock = threading.Lock()
        width = DTYPE_BYTES[index.dtype]
        named = [shard.name for shard in index.shards]
        raw = [shard for shard in index.shards if not shard.name.endswith(DECODED)]
        self.num_bytes = {shard.name: shard.num_tokens * width for shard in raw}
        self._named = {shard.name: shard.sha256 for shard in raw if shard.sha256}
        self._expected = {shard.name: shard.sha256 for shard in known} | self._named
        told = [*versions, *[None] * (len(named) - len(versions))]
        self._right = {
            name: {version} if version else set() for name, version in zip(named, told, strict=True)
        }
        hashed = {shard.name: shard.versions for shard in known if self._expected[shard.name] == shard.sha256}
        self.to_hash = {
            name for name, version in zip(named, told, strict=True) if version not in hashed.get(name, ())
        }
        for name in named:
            self._right[name].update(hashed.get(name, ()))

    def is_cut(self, name: str, start: int, wanted: int, count: int) -> bool:
        """Whether bytes lack that the index tells of. Whoever reads them says where."""
        return count < min(wanted, self.num_bytes.get(name, 0) - start)

    def is_right(self, name: str, version: str | None) -> bool:
        right = self._right[name]
        if version is not None and not right:
            right.add(version)
        return version is None or version in right

    def is_known(self, name: str, version: str | None) -> bool:
        right = self._right[name]
        return version in right if right else version is None

    def compare(self, name: str) -> None:
        """Hashes a shard. Raises ``DataError`` if it is another than the index names."""
        with self._lock:
            if self.problem:
                raise self.problem
            try:
                self._compare(name)
            except DataError as error:
                self.problem = error
                raise

    def give_up(self, error: BaseException) -> None:
        """Notes that nothing can be compared any more, which ends the attempt."""
        why = f"{type(error).__name__}: {str(error)[:300]}"
        self.problem = DataError(f"data: {self._url}: shards can't be compared: {why}")

    def _compare(self, name: str) -> None:
        began_s = self._now()
        found, version, num_bytes = self._hashed(name)
        if num_bytes != self.num_bytes.get(name, num_bytes):
            raise DataError(
                f"data: {self._url}/{name}: has {num_bytes:,} bytes, expected {self.num_bytes[name]:,} for "
                "the tokens in its index; bring the whole file back"
            )
        expected = self._expected.setdefault(name, found if self.is_right(name, version) else "")
        if not expected:
            raise DataError(
                f"data: {self._url}/{name}: was changed since this run started, and nothing tells whether "
                "its bytes are the same; write its sha256 into the index, or leave it alone and start again"
            )
        if found != expected:
            owner = _INDEX if name in self._named else "this run began with"
            raise DataError(other_bytes(f"{self._url}/{name}", found, expected, owner))
        if version is not None:
            self._right[name].add(version)
        self._learn(name, found, version if version and is_settled(version, began_s) else None)

    def _learn(self, name: str, sha256: str, version: str | None) -> None:
        before = self.learnt[name].versions if name in self.learnt else ()
        versions = (*before, version) if version and version not in before else before
        self.learnt[name] = KnownShard(name=name, sha256=sha256, versions=versions)

    def _hashed(self, name: str) -> tuple[str, str | None, int]:
        # For thousands of small shards. One byte more, which a longer file fills.
        most = min(_READ_BYTES, self.num_bytes.get(name, _READ_BYTES) + 1)
        digest, buffer = hashlib.sha256(), memoryview(bytearray(most))
        at, count, versions = 0, len(buffer), set()
        while count == len(buffer):
            if self._is_unwanted.is_set():
                raise _Unwanted
            count, version = self._store.read(name, at, buffer)
            versions |= {version} - {None}
            digest.update(buffer[:count])
            at += count
        if len(versions) > 1:
            raise DataError(
                f"data: {self._url}/{name}: changes while it is read; leave it alone during a run"
            )
        return digest.hexdigest(), next(iter(versions), None), at


class _Share:
    """The shards that one rank hashes in the background."""

    def __init__(
        self,
        digests: _Digests,
        names: Sequence[str],
        is_unwanted: threading.Event,
        keep: _Keep | None,
        *,
        is_small: bool,
    ) -> None:
        self._digests = digests
        self._names = [name for name in names if name in digests.to_hash]
        self._is_unwanted = is_unwanted
        self._keep = keep
        self._kept_s = time.monotonic()
        self._is_done = threading.Event()
        self._is_small = is_small

    def hash_all(self) -> None:
        try:
            for name in self._names:
                while not self._is_unwanted.is_set() and not self._is_compared(name):
                    self._is_unwanted.wait(_AGAIN_AFTER_S)
                if time.monotonic() - self._kept_s > _KEPT_EVERY_S:
                    self._keep_learnt()
            # Before the first step of a small share: what it trains on is then known to all later attempts.
            self._keep_learnt()
        except BaseException as error:  # a panic of a library too: no thread ends in silence
            self._digests.give_up(error)
        self._is_done.set()

    def _keep_learnt(self) -> None:
        if self._keep and self._digests.learnt:
            self._keep(tuple(self._digests.learnt.values()))
        self._kept_s = time.monotonic()

    def wait(self, timeout_s: float) -> bool:
        return not self._is_small or self._is_done.wait(timeout_s) or self._digests.problem is not None

    def _is_compared(self, name: str) -> bool:
        """False if the store is away. Whoever reads a sample of a shard that is gone says so."""
        try:
            self._digests.compare(name)
        except (DataError, Missing, _Unwanted):
            return True
        except StoreError:
            return False
        return True


def other_bytes(where: str, found: str, expected: str, owner: str = _INDEX) -> str:
    otherwise = "pack the data again" if owner == _INDEX else "begin anew with --fresh"
    return (
        f"data: {where}: its bytes are not those that {owner}: their SHA-256 is {found}, expected "
        f"{expected}; bring the right file back, or {otherwise}"
    )
