"""A directory for Ray processes that end with this process, however it ends.

``reaper`` kills every process that carries the mark of the directory, and then removes the directory.
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

# A Unix socket's path is limited to 107 characters. This directory is followed by `/lh-12345678`, then
# `/ray` or the name of a node, and up to 67 characters of Ray's. The longest are those of a forkserver's
# socket (`jobs.launch`) with a process id of 7 digits.
_LONGEST_DIRECTORY = 24
_REAPER_TIMEOUT_S = 15.0
_PROJECT = Path(__file__).resolve().parents[2]
# Ranks of one machine talk over loopback; by default gloo uses the address of the host's name.
_ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@contextmanager
def marked_directory() -> Iterator[str]:
    """Yields a directory. After the block no process marked with it and no file below it is left. After
    ``kill -9`` of this process that holds within 15 s.

    Other users cannot look into the directory. Ray opens the folder that it is given to everybody, so Ray
    gets a folder below this one.
    """
    root = tempfile.mkdtemp(prefix=reaper.NAME, dir=short_directory())
    Path(root, reaper.MARKER).touch()
    watcher = _start_reaper(root)
    try:
        yield root
    finally:
        _wait_for_reaper(root, watcher)


def check_closed(root: str) -> None:
    """Raises ``PermissionError`` unless the directory belongs to this user and is closed to all others.

    Call it once Ray has started, because Ray trusts the files below by their names.
    """
    found = os.lstat(root)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode != 0o700 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(
            f"{root}: found mode {mode:o} and owner {found.st_uid}, expected a folder with mode 700 and "
            f"owner {os.geteuid()}: others could take over what runs there; what changed it must not do so"
        )


def environment_of(root: str) -> dict[str, str]:
    """Returns what every process of the directory is started with: its mark, and where our packages are."""
    path = os.environ.get("PYTHONPATH")
    return {
        reaper.MARK: root,
        "RAY_USAGE_STATS_ENABLED": "0",
        # This value makes Ray listen on loopback alone, on Linux too.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Workers import our packages wherever the driver was started.
        "PYTHONPATH": f"{_PROJECT}{os.pathsep}{path}" if path else str(_PROJECT),
        **where_unset(_ON_LOOPBACK, os.environ),
    }


def short_directory() -> str:
    """The folder for temporary files, if sockets below it have paths that are short enough."""
    chosen = tempfile.gettempdir()
    return chosen if len(chosen) <= _LONGEST_DIRECTORY else "/tmp"


def _start_reaper(root: str) -> "subprocess.Popen[bytes]":
    """Starts the reaper. Only this process holds the other end of its standard input; no child inherits
    that end.

    It is unmarked: if this process belongs to another marked directory and ends with it, the reaper lives on
    and does its work.
    """
    return subprocess.Popen(
        [sys.executable, "-S", "-E", reaper.__file__, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != reaper.MARK},
        start_new_session=True,
        cwd="/",
    )


def _wait_for_reaper(root: str, watcher: "subprocess.Popen[bytes]") -> None:
    assert watcher.stdin is not None
    watcher.stdin.close()
    if watcher.wait(_REAPER_TIMEOUT_S) != 0:
        reaper.clear(root)
