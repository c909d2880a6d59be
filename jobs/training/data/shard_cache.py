"""A shard cache: a bounded folder on a node's own disk, shared by its ranks, with copies of a store's shards.

* A shard is compared with its SHA-256 while it is copied, and each copy with its own once per attempt. A copy
  is read only while it is what was compared (see ``copy_seals``); any other is copied again.
* A shard that is not in the cache is read from the store. Parquet shards are decoded into the cache, so they
  must fit.
* Deleting the folder costs time and nothing else.

The cache is ``longhaul-tokens-<user>`` in the folder that the user names, with one folder for each data set.
Each data set's folder has a mark file. Only a folder that has both such a name and the mark is ever deleted.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from os.path import expanduser, realpath
from pathlib import Path

from checkpointing.stores.contract import Missing, StoreError
from checkpointing.stores.folders import (
    NotOurs,
    below,
    file_in,
    files_below,
    names_in,
    private_folder,
    read_into,
    write_all,
)
from jobs.training.data.copy_seals import Seal, break_seal, digest_of, is_seal, seal_on, set_seal, version_now
from jobs.training.data.kept_files import KeptFiles, Piece, fair_share
from jobs.training.data.shard_check import WAITED_FOR_BYTES, other_bytes
from jobs.training.data.shards import Copyable, Vouching
from jobs.training.task.token_index import DECODED, DTYPE_BYTES, DataError, TokenIndex, TokenShard

_READ_BYTES = 8 * 2**20
_OURS = "longhaul-tokens-"
_MARK = ".longhaul-tokens"
_DATA_SET = re.compile("[0-9a-f]{16}")
# The folder below which the local tier of checkpoints keeps its files.
_SAVES = "runs"
_log = logging.getLogger(__name__)


def folder_conflict(cache: str, saves: str) -> str | None:
    """Says why shard cache and local tier can't use these folders together on this machine; None if they can.

    ``cache`` is data.local.dir and ``saves`` is checkpoint.local.dir. Both make room by deleting, so neither
    may lie in the part of a folder that the other one uses.
    """
    tokens, disk = _resolved(cache), _resolved(saves)
    if tokens == disk:
        how = "are one place"
    elif disk.is_relative_to(tokens) and disk.relative_to(tokens).parts[0].startswith(_OURS):
        how = "don't go together: the second lies in what the first one makes room in"
    elif tokens.is_relative_to(disk / _SAVES):
        how = "don't go together: the first lies in what the second one makes room in"
    else:
        return None
    return (
        f"data.local.dir: {cache!r} and checkpoint.local.dir: {saves!r} {how} ({disk}); give each a folder "
        "of its own, such as /nvme/tokens and /nvme/saves"
    )


def _resolved(folder: str) -> Path:
    """The folder's path with links resolved. Never raises, even if the folder or a home does not exist."""
    return Path(realpath(expanduser(folder)))  # noqa: PTH111 - that of a Path raises where there is no home


class ShardCache:
    """Shards that are read like a store's. A ``~`` at the start of ``folder`` is this node's home.

    ``limit_bytes`` is the limit for the whole folder, including other data sets in it. These shards may have
    ``share_bytes`` of it; None means all.
    """

    def __init__(
        self,
        store: Copyable,
        index: TokenIndex,
        folder: Path,
        limit_bytes: int,
        *,
        share_bytes: int | None = None,
        num_sources: int = 1,
    ) -> None:
        self.url = store.url
        self._store = store
        self._width = DTYPE_BYTES[index.dtype]
        self._num_bytes = {shard.name: shard.num_tokens * self._width for shard in index.shards}
        self._unnamed = {shard.name for shard in index.shards if not shard.is_named_by_its_bytes}
        # With another limit other shards fit, so it gets another folder, and this one can then be removed.
        self._share_bytes = limit_bytes if share_bytes is None else share_bytes
        identity = f"{store.url} {index.digest} {self._share_bytes}"
        self._data_set = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._place = folder.expanduser() / f"{_OURS}{os.geteuid()}"
        self._limit_bytes = limit_bytes
        self.fitting = fitting_shards(index, self._share_bytes)
        self._problem: DataError | None = None
        self._copying: threading.Thread | None = None
        # The versions that seals named when they were last looked at.
        self._sealed: dict[str, str] = {}
        self._kept = KeptFiles(self._opened_copy, fair_share(num_sources))

    def confirm(self) -> None:
        """Raises the ``DataError`` of a shard that ``copy_all`` found to be wrong."""
        if self._problem:
            raise self._problem

    def wait(self, timeout_s: float) -> bool:
        """Whether a step may begin: what ``copy_all`` copies was compared, or is too much to wait for."""
        if self._copying is None or sum(map(self._num_bytes.__getitem__, self.fitting)) > WAITED_FOR_BYTES:
            return True
        self._copying.join(timeout_s)
        return not self._copying.is_alive()

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """As a store's. Raises ``DataError`` if any shard that ``copy_all`` copied was found to be wrong."""
        self.confirm()
        if (count := self._read_copy(name, start, into)) is not None:
            return count
        if not name.endswith(DECODED):
            return self._store.get_range(name, start, into)
        if name not in self.fitting:
            raise DataError(
                f"data: {self.url}/{name}: its decoded ids don't fit in data.local.gib "
                f"({self._share_bytes / 2**30:g} GiB for them); allow more, or make .bin shards of them"
            )
        self._copy(self.fitting[name])
        if (count := self._read_copy(name, start, into)) is None:
            raise Missing(f"{self._place}: {name} was removed right after it was copied")
        return count

    def fill(self, name: str, pieces: Sequence[Piece]) -> bool:
        """Whether all pieces were filled from a copy that is what was compared."""
        sealed = self._sealed.get(name)
        return sealed is not None and not self._problem and self._kept.fill(name, pieces) == sealed

    def copy_all(self, siblings: Sequence["ShardCache"] = ()) -> threading.Thread:
        """Copies the shards that fit, in the order of the index, in a background thread.

        Only one rank of a node calls it. ``siblings`` are the caches of the same run in the same folder,
        whose data sets are kept; this one may be among them.
        """
        self._make_room({one._data_set: one for one in (self, *siblings)})
        self._copying = threading.Thread(target=self._copy_each, name="shard cache", daemon=True)
        self._copying.start()
        return self._copying

    def _make_room(self, kept: Mapping[str, "ShardCache"]) -> None:
        """Deletes other data sets until those of this run fit, the least recently used first.

        A run that still reads a deleted data set reads from the store again.
        """
        needed = sum(one._num_bytes[name] for one in kept.values() for name in one.fitting)
        with (
            suppress(OSError),
            self._data_sets(make=True) as place,
        ):  # Another run here tidies at the same time.
            with self._folder_of(place, "", make=True) as mine:
                os.utime(".", dir_fd=mine)
            others = [name for name in names_in(place) if name not in kept and _is_ours(place, name)]
            for name in sorted(others, key=lambda name: _used_s(place, name), reverse=True):
                num_bytes = _num_bytes(place, name)
                needed += num_bytes
                if needed > self._limit_bytes:
                    _remove(place, name)
                    _log.warning(
                        "data.local: removed %s, %s bytes of other data, to make room",
                        self._place / name,
                        f"{num_bytes:,}",
                    )

    @contextmanager
    def _data_sets(self, *, make: bool = False) -> Iterator[int]:
        try:
            with private_folder(self._place, make=make) as place:
                yield place
        except NotOurs as error:
            raise DataError(f"data: {error}; remove it, or name another folder by data.local.dir") from None

    @contextmanager
    def _folder_of(self, place: int, name: str, *, make: bool = False) -> Iterator[int]:
        """Opens the folder below ``place`` in which the shard ``name`` lies."""
        if make:
            _mark(place)
            with below(place, [self._data_set], make=True) as mine:
                _mark(mine)
        with below(place, [self._data_set, *name.split("/")[:-1]], make=make) as folder:
            yield folder

    def _copy_each(self) -> None:
        try:
            for shard in self.fitting.values():
                self._compare_copy(shard)
                self._copy(shard)
        except DataError as error:
            self._problem = error
        except (StoreError, OSError):
            # The store is away or the disk is full: a reader that needs the shard gets the error itself.
            return

    def _compare_copy(self, shard: TokenShard) -> None:
        """Hashes the copy that an earlier attempt left. One that was changed is no longer read, and is copied
        again. Raises ``DataError`` if bytes changed although nobody wrote them: samples may have been read.
        """
        last = shard.name.rpartition("/")[2]
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            self._data_sets() as place,
            self._folder_of(place, shard.name) as folder,
            file_in(folder, last) as file,
        ):
            seal = seal_on(folder, last)
            found = digest_of(file)
            if seal is None or found == seal.sha256:
                return
            where = self._place / self._data_set / shard.name
            if version_now(file) != seal.version:
                _log.warning("data.local: %s was changed by somebody; it is copied again", where)
                return
            break_seal(folder, last)
            raise DataError(
                f"data: {where}: this node's copy has lost its bytes: their SHA-256 is {found}, expected "
                f"{seal.sha256}; look after its disk. The next start copies it again"
            )

    def _copy(self, shard: TokenShard) -> None:
        last = shard.name.rpartition("/")[2]
        with (
            self._data_sets(make=True) as place,
            self._folder_of(place, shard.name, make=True) as folder,
            _locked(folder, last),
        ):
            if self._is_copied(folder, shard.name):
                return
            source = self._source_of(shard.name)
            # The version may be known only now: another rank of this node may have copied the shard.
            if source and self._is_copied(folder, shard.name):
                return
            # The name is always the same, so that a killed process's file is overwritten.
            temporary = f".{last}.tmp"
            try:
                with file_in(folder, temporary, "w") as file:
                    sha256 = self._write(shard, file)
                    os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
                    seal = Seal(sha256=sha256, version=version_now(file), source=source)
                    set_seal(folder, last, seal)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)

    def _is_copied(self, folder: int, name: str) -> bool:
        with suppress(OSError), file_in(folder, name.rpartition("/")[2]) as file:
            seal = self._seal_on(folder, name)
            return seal is not None and seal.version == version_now(file)
        return False

    def _read_copy(self, name: str, start: int, into: memoryview) -> int | None:
        """Reads from the cache; None if the shard was not copied yet, was removed to make room, or is not
        what was compared.
        """
        last = name.rpartition("/")[2]
        with (
            suppress(OSError),
            self._data_sets() as place,
            self._folder_of(place, name) as folder,
            file_in(folder, last) as file,
        ):
            file.seek(start)
            count = read_into(file, into)
            # Asked for after the reading, so that bytes that were changed meanwhile are not taken.
            version = version_now(file)
            if self._sealed.get(name) != version and (seal := self._seal_on(folder, name)):
                self._sealed[name] = seal.version
            if self._sealed.get(name) == version:
                return count
        return None

    def _opened_copy(self, name: str) -> FileIO:
        with self._data_sets() as place, self._folder_of(place, name) as folder:
            return file_in(folder, name.rpartition("/")[2])

    def _seal_on(self, folder: int, name: str) -> Seal | None:
        """The seal of a shard's copy; None if that was made of other bytes than this run's."""
        seal = seal_on(folder, name.rpartition("/")[2])
        if seal is None or not (name in self._unnamed and isinstance(self._store, Vouching)):
            return seal
        return seal if self._store.vouches(name, seal.source) else None

    def _source_of(self, name: str) -> str | None:
        """The version that a shard has before it is copied, if no index names its digest. All that is read
        of it then has the same bytes, since its reader compares what has another version.
        """
        if not (name in self._unnamed and isinstance(self._store, Vouching)):
            return None
        try:
            return self._store.vouched(name)
        except Missing:
            raise DataError(f"data: {self.url}/{name} is gone; bring it back") from None

    def _write(self, shard: TokenShard, file: FileIO) -> str:
        """Copies and checks a shard, and returns its SHA-256; its bytes are on disk when this returns.

        Without that, a power cut after the renaming could leave the file's name without its bytes.
        """
        digest = hashlib.sha256()
        for data in self._bytes_of(shard):
            digest.update(data)
            write_all(file, memoryview(data))
        os.fsync(file.fileno())
        found = digest.hexdigest()
        # That of a decoded shard is no digest of its bytes; ``ids_of`` compares it.
        is_decoded = shard.name.endswith(DECODED)
        if not is_decoded and shard.sha256 not in (None, found):
            raise DataError(other_bytes(f"{self.url}/{shard.name}", found, shard.sha256))
        if file.tell() != self._num_bytes[shard.name]:
            owner = "footer" if is_decoded else "index"
            raise DataError(
                f"data: {self.url}/{shard.name}: its bytes are not those that its {owner} names: they are "
                f"{file.tell():,} bytes of ids, expected {self._num_bytes[shard.name]:,}; copy it again, or "
                "pack the data again"
            )
        return found

    def _bytes_of(self, shard: TokenShard) -> Iterator[bytes | memoryview]:
        if shard.name.endswith(DECODED):
            from jobs.training.data.formats.decoding import ids_of

            yield from ids_of(self._store, shard)
            return
        buffer = memoryview(bytearray(_READ_BYTES))
        for start in range(0, self._num_bytes[shard.name], _READ_BYTES):
            yield buffer[: self._store.get_range(shard.name, start, buffer)]


def fitting_shards(index: TokenIndex, limit_bytes: int) -> dict[str, TokenShard]:
    """The first shards that fit together: those that are copied, and compared as they are."""
    fitting, room = {}, limit_bytes
    for shard in index.shards:
        room -= shard.num_tokens * DTYPE_BYTES[index.dtype]
        if room < 0:
            break
        fitting[shard.name] = shard
    return fitting


@contextmanager
def _locked(folder: int, name: str) -> Iterator[None]:
    """Locks a shard: one rank of a node copies it and the others wait. A killed rank's lock is released."""
    with file_in(folder, f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mark(folder: int) -> None:
    """Writes the mark file with the present time, so that a cleaner that deletes old files leaves it."""
    with file_in(folder, _MARK, "a") as file:
        os.utime(file.fileno())


def _is_ours(place: int, name: str) -> bool:
    with suppress(OSError):
        if _DATA_SET.fullmatch(name):
            with below(place, [name]) as folder:
                return stat.S_ISREG(os.stat(_MARK, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _used_s(place: int, name: str) -> float:
    return os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime


def _num_bytes(place: int, name: str) -> int:
    """The bytes of a data set's shards; what lies beside them is tiny."""
    with below(place, [name]) as folder:
        files = (entry for file, entry in files_below(folder, name) if not is_seal(file))
        return sum(entry.stat(follow_symlinks=False).st_size for entry in files)


def _remove(place: int, name: str) -> None:
    """Deletes a data set's folder, the mark last: if the process is killed, the rest can still be deleted."""
    with below(place, [name]) as folder:
        for entry in sorted(names_in(folder), key=lambda entry: entry == _MARK):
            shutil.rmtree(entry, dir_fd=folder, onerror=lambda *_: None)
            with suppress(OSError):
                os.unlink(entry, dir_fd=folder)
    with suppress(OSError):  # Another run may copy a shard into the folder at the same time.
        os.rmdir(name, dir_fd=place)
