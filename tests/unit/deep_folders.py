"""Folders that somebody put into one another, more of them than a path can name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def deep_folders(top: Path, depth: int) -> Iterator[None]:
    """Inside, ``top`` has ``depth`` folders in one another, and a file in the last. What removes other
    temporary folders can't remove these.
    """
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        here = _gone_to("d", here)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    try:
        yield
    finally:
        os.unlink("file", dir_fd=here)
        for _ in range(depth):
            here = _gone_to("..", here)
            os.rmdir("d", dir_fd=here)
        os.close(here)
        top.rmdir()


def _gone_to(name: str, here: int) -> int:
    there = os.open(name, os.O_RDONLY, dir_fd=here)
    os.close(here)
    return there
