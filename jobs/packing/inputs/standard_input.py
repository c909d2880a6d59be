"""Standard input as a file: its bytes lie in a folder of this user's alone while they are packed."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from jobs.packing.pieces import InputError, SourceKind

STANDARD_INPUT = "-"
MOST_BYTES = 64 * 2**30
# Others write to the same disk.
LEAST_FREE_BYTES = 2**30
_CHUNK_BYTES = 2**20
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


@contextmanager
def with_standard_input(
    inputs: Sequence[Path | str], rest: SourceKind | None
) -> Iterator[Sequence[Path | str]]:
    """The inputs with the path of a file for ``-``, which is deleted at the end.

    Raises ``InputError`` without ``rest``, before anything is read, and of more bytes than there is room for.
    Errors of what is in the file name it as standard input.
    """
    if STANDARD_INPUT not in inputs:
        yield inputs
        return
    if rest is None:
        raise InputError("standard input: nothing tells what is in it; say so, such as by --as jsonl")
    if inputs.count(STANDARD_INPUT) > 1:
        raise InputError("standard input: is named twice; name it once")
    with TemporaryDirectory(prefix="longhaul-pack-") as folder:
        path = Path(folder) / "standard-input"
        try:
            _copy(path)
        except OSError as error:
            raise InputError(
                f"standard input: can't be kept in {folder} ({error.strerror}); name another place by TMPDIR"
            ) from None
        try:
            yield [path if given == STANDARD_INPUT else given for given in inputs]
        except InputError as error:
            raise InputError(str(error).replace(str(path), "standard input")) from None


def _copy(path: Path) -> None:
    if sys.stdin is None:
        raise InputError("standard input: is closed; give it something to read")
    num_bytes = 0
    with path.open("xb") as file:
        for data in _chunks(sys.stdin.buffer):
            if not num_bytes and data.startswith(_COMPRESSED):
                raise InputError(
                    "standard input: is compressed; unpack it first, such as with zcat or zstdcat"
                )
            num_bytes += len(data)
            if num_bytes > MOST_BYTES:
                raise InputError(
                    f"standard input: has more than {MOST_BYTES:,} bytes; write it to files, and name those"
                )
            if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES + len(data):
                raise InputError(
                    f"standard input: {path.parent.parent} has less than {LEAST_FREE_BYTES:,} bytes left; "
                    "name another place by TMPDIR"
                )
            file.write(data)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK_BYTES), b"")
