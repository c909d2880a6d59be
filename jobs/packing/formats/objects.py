"""The bytes of an object in a store, read in ranges as they are asked for: never the whole of a large one."""

import io
from functools import lru_cache
from typing import Any, BinaryIO, cast

from checkpointing.stores.contract import Missing, Store, StoreError, Unavailable
from checkpointing.stores.opening import open_store
from checkpointing.stores.retrying import RetryLimits
from checkpointing.stores.versions import versions_of
from jobs.packing.pieces import InputError, StoredObject

# A header takes one small request. Whoever reads on gets more with each.
_FIRST_BYTES = 2**18
_MOST_BYTES = 8 * 2**20
_BUFFER_BYTES = 2**16


def opened_object(found: StoredObject) -> BinaryIO:
    """Opens an object for reading. A read raises ``InputError`` if the object is not the one that was found,
    and ``Unavailable`` if the store does not give it.
    """
    return cast(BinaryIO, io.BufferedReader(_Ranges(found), _BUFFER_BYTES))


@lru_cache(maxsize=8)
def store_at(url: str, patience: RetryLimits | None = None) -> Store:
    """Raises ``InputError`` if the URL is none of a store."""
    try:
        return open_store(url, patience=patience)
    except StoreError as error:
        # Not with the URL, in which there may be a password.
        raise InputError(f"input: {str(error).removeprefix('store: ')}") from None


def as_problem(error: StoreError, store: Store, name: str, url: object) -> Exception:
    """What to raise for an error of reading ``name``, which the user knows as ``url``."""
    told = str(error)
    for place in (f"store: {store.url}: {name}: ", f"store: {store.url}: ", "store: "):
        told = told.removeprefix(place)
    if isinstance(error, Missing):
        return InputError(f"{url}: does not exist; give an object, a folder of objects or a pattern")
    if isinstance(error, Unavailable):
        return type(error)(f"{url}: {told}")
    # What it advises is for those who write there.
    return InputError(f"{url}: can't be read ({told.partition(';')[0]}); give the place of the input")


class _Ranges(io.RawIOBase):
    def __init__(self, found: StoredObject) -> None:
        self._found = found
        self._store = store_at(found.store)
        self._at = self._begin = 0
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._found.num_bytes}[whence]
        self._at = max(begin + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._found.num_bytes:
            return 0
        end = self._begin + len(self._held)
        if not self._begin <= self._at < end:
            num_bytes = min(2 * len(self._held), _MOST_BYTES) if self._at == end and self._held else 0
            self._begin, self._held = self._at, self._read(max(num_bytes, _FIRST_BYTES))
        held = self._held[self._at - self._begin :][: len(buffer)]
        buffer[: len(held)] = held
        self._at += len(held)
        return len(held)

    def _read(self, num_bytes: int) -> memoryview:
        found = self._found
        into = memoryview(bytearray(min(num_bytes, found.num_bytes - self._at)))
        try:
            count, version = versions_of(self._store).read(found.name, self._at, into)
        except StoreError as error:
            raise as_problem(error, self._store, found.name, found) from None
        if count < len(into) or version != found.version:
            raise InputError(
                f"{found}: was replaced while it was packed; pack again when nobody writes to it"
            )
        return into
