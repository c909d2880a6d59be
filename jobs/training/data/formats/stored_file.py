"""An object in a store as a file with random access."""

import io
from typing import Any

from jobs.training.data.shards import Copyable

READ_BYTES = 2**20


class StoredFile(io.RawIOBase):
    """An object in a store as a file with random access."""

    def __init__(self, store: Copyable, name: str) -> None:
        self._store, self._name = store, name
        self._offset = 0
        self._size = store.size(name)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        return self._offset

    def readinto(self, buffer: Any) -> int:
        num_bytes = self._store.get_range(self._name, self._offset, memoryview(buffer).cast("B"))
        self._offset += num_bytes
        return num_bytes
