"""A directory for processes of Ray that end with this process, however it ends.

``reaper`` sees to it: what carries the mark of the directory is killed, then the directory goes.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.local_ray import reaper

# A Unix socket's path ends at 107. Ray puts up to 64 letters behind ours, for a process id of 7 digits, and
# we put `/lh-12345678` and the name of a node there.
_LONGEST_DIRECTORY = 24
_GUARDIAN_PATIENCE_S = 15.0
_PROJECT = Path(__file__).resolve().parents[2]


@contextmanager
def guarded_directory() -> Iterator[str]:
    """After the block no process marked with it and no file below it is left; within 15 s also after
    ``kill -9`` of this process.
    """
    root = tempfile.mkdtemp(prefix=reaper.NAME, dir=_short_directory())
    Path(root, reaper.MARKER).touch()
    watch = _start_guardian(root)
    try:
        yield root
    finally:
        _let_guardian_finish(root, watch)


def environment_of(root: str) -> dict[str, str]:
    """What every process of the directory is started with: its mark, and where our rooms are."""
    path = os.environ.get("PYTHONPATH")
    return {
        reaper.MARK: root,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Workers import these rooms wherever the driver was started.
        "PYTHONPATH": f"{_PROJECT}{os.pathsep}{path}" if path else str(_PROJECT),
    }


def _short_directory() -> str:
    chosen = tempfile.gettempdir()
    return chosen if len(chosen) <= _LONGEST_DIRECTORY else "/tmp"


def _start_guardian(root: str) -> "subprocess.Popen[bytes]":
    """Its standard input is a pipe whose other end this process alone holds: no child inherits it."""
    return subprocess.Popen(
        [sys.executable, "-S", "-E", reaper.__file__, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def _let_guardian_finish(root: str, watch: "subprocess.Popen[bytes]") -> None:
    assert watch.stdin is not None
    watch.stdin.close()
    if watch.wait(_GUARDIAN_PATIENCE_S) != 0:
        reaper.clear(root)
