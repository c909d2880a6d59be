"""Reads a file that holds a secret, and refuses one that others may read or write. Pure."""

import os
import stat
from io import FileIO
from pathlib import Path

from jobs.commandline.usage_error import SpecError

MOST_BYTES = 1_000_000


def text_of_own_file(path: Path, place: str, wanted: str) -> str:
    """Returns what the file holds. ``place`` says who names the file, ``wanted`` what belongs into it."""
    try:
        data = _read(path, place, wanted)
        if len(data) > MOST_BYTES:
            raise SpecError([f"{place}: {path} has more than the {MOST_BYTES:,} bytes that are read"])
        return data.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise SpecError([f"{place}: {path} can't be read ({why}); give a file {wanted}"]) from None


def _read(path: Path, place: str, wanted: str) -> bytes:
    # A pipe without a writer would block opening for ever.
    with FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise SpecError([f"{place}: {path} is no file; give a file {wanted}"])
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
            raise SpecError(
                [
                    f"{place}: {path} has mode {found.st_mode & 0o777:04o} and owner {found.st_uid}; "
                    f"expected 0600 and user {os.geteuid()}, as others may read it"
                ]
            )
        # Where an open file is opened by its number, both may share one position.
        file.seek(0)
        return _all_of(file)


def _all_of(file: FileIO) -> bytes:
    data = b""
    while len(data) <= MOST_BYTES and (more := file.read(MOST_BYTES + 1 - len(data))):
        data += more
    return data
