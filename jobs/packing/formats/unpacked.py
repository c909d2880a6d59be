"""The bytes of a file as they were before gzip or zstd packed them, one after the other, within bounds.

Places in a compressed file are counted in unpacked bytes, so it is cut as the unpacked file would be.
"""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from jobs.packing.formats.naming import is_unpacked
from jobs.packing.formats.objects import opened_object
from jobs.packing.pieces import InputError, InputFile, StoredObject

# Whoever reads a piece unpacks all before it too.
MOST_BYTES = 8 * 2**30
_CHUNK_BYTES = 2**20
_BROKEN = (OSError, EOFError, MemoryError, zlib.error)


def as_stored(path: InputFile | Path) -> BinaryIO:
    """Opens a file for reading the bytes that lie there, compressed or not."""
    return opened_object(path) if isinstance(path, StoredObject) else Path(path).open("rb")


def opened(path: InputFile | Path, start: int = 0) -> BinaryIO:
    """Opens a file for reading from its unpacked byte ``start`` on."""
    if not is_unpacked(path):
        file = as_stored(path)
        file.seek(start)
        return file
    unpacked = io.BufferedReader(_Unpacked(path), _CHUNK_BYTES)
    while start and (data := unpacked.read(min(start, _CHUNK_BYTES))):
        start -= len(data)
    return cast(BinaryIO, unpacked)


def num_bytes(path: InputFile | Path) -> int:
    """How many bytes the file has, unpacked."""
    if not is_unpacked(path):
        return path.num_bytes if isinstance(path, StoredObject) else Path(path).stat().st_size
    with opened(path) as file:
        return sum(len(data) for data in iter(lambda: file.read(_CHUNK_BYTES), b""))


class _Unpacked(io.RawIOBase):
    """Raises ``InputError`` if the file is broken, or holds more than ``MOST_BYTES``."""

    def __init__(self, path: InputFile | Path) -> None:
        self._path, self._at = path, 0
        self._file = as_stored(path)
        self._suffix = "." + str(path).lower().rpartition(".")[2]
        self._broken: tuple[type[Exception], ...] = _BROKEN
        self._stream: Any
        if self._suffix == ".gz":
            self._stream = gzip.GzipFile(fileobj=self._file)
        else:
            import pyarrow  # Only here: it takes long to load.

            self._stream = pyarrow.CompressedInputStream(self._file, "zstd")
            self._broken += (pyarrow.ArrowException,)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = int(self._stream.readinto(buffer))
        except self._broken as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise InputError(
                f"{self._path}: is no whole {self._suffix} file behind unpacked byte "
                f"{self._at:,} ({str(error).partition(chr(10))[0]}); fetch or compress it again"
            ) from None
        self._at += found
        if self._at > MOST_BYTES:
            raise InputError(
                f"{self._path}: holds more than {MOST_BYTES:,} bytes, unpacked; unpack it first, or split it"
            )
        return found

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()
