"""Reads a file that a user named, without waiting: a pipe that nobody writes to would never let go."""

import os
import stat
from errno import EINVAL, EISDIR
from pathlib import Path


def read_named(path: Path, most_bytes: int) -> bytes:
    """Returns at most ``most_bytes`` and one, so that the caller sees what is too large.

    Raises ``OSError``, whose ``strerror`` says what is wrong, also of what is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "is a pipe, a socket or a device, and no file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
