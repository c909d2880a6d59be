"""A directory for processes of Ray that end with this process, however it ends.

``reaper`` sees to it: what carries the mark of the directory is killed, then the directory goes.
"""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.local_ray import reaper
from cluster.local_ray.timeouts import where_unset

# A Unix socket's path ends at 107. Behind this directory come `/lh-12345678`, `/ray` or the name of a node,
# and up to 67 letters of Ray's: those of a parent's socket (`jobs.launch`), for a process id of 7 digits.
_LONGEST_DIRECTORY = 24
_GUARDIAN_PATIENCE_S = 15.0
_PROJECT = Path(__file__).resolve().parents[2]
# Ranks of one machine talk through it; left alone gloo takes the address that the host's name has.
_ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@contextmanager
def guarded_directory() -> Iterator[str]:
    """After the block no process marked with it and no file below it is left; within 15 s also after
    ``kill -9`` of this process.

    Nobody else can look into it. Ray opens the folder that it is given to everybody, so that one goes below.
    """
    root = tempfile.mkdtemp(prefix=reaper.NAME, dir=_short_directory())
    Path(root, reaper.MARKER).touch()
    watch = _start_guardian(root)
    try:
        yield root
    finally:
        _let_guardian_finish(root, watch)


def check_closed(root: str) -> None:
    """``PermissionError`` unless the directory is this user's and lets nobody else in. To be asked once Ray
    has started: what Ray believes by name is below.
    """
    found = os.lstat(root)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode != 0o700 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(
            f"{root}: found mode {mode:o} and owner {found.st_uid}, expected a folder with mode 700 and "
            f"owner {os.geteuid()}: others could take over what runs there; what changed it must not do so"
        )


def environment_of(root: str) -> dict[str, str]:
    """What every process of the directory is started with: its mark, and where our rooms are."""
    path = os.environ.get("PYTHONPATH")
    return {
        reaper.MARK: root,
        "RAY_USAGE_STATS_ENABLED": "0",
        # With it Ray listens on loopback alone, on Linux too.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Workers import these rooms wherever the driver was started.
        "PYTHONPATH": f"{_PROJECT}{os.pathsep}{path}" if path else str(_PROJECT),
        **where_unset(_ON_LOOPBACK, os.environ),
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
