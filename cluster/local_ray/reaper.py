"""Outlives a killed driver: the reaper ends every process of its private Ray and removes that Ray's
directory.

``marked_directory`` starts it as ``python -S -E reaper.py ROOT`` and holds the other end of its standard
input. When that end closes, for whatever reason, the driver is done.

It uses only the standard library, so it starts in milliseconds and stays small. Every process of the
session carries ``MARK=ROOT`` in its environment, which survives the new names that Ray gives its processes.
"""

import contextlib
import os
import re
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

MARK = "LONGHAUL_PRIVATE_RAY"
# Only a directory with such a name and such a file in it is ours; no other directory is ever removed.
NAME = "lh-"
MARKER = ".longhaul-private-ray"

_PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm/"
_DEADLINE_S = 10.0
# Names that NCCL, RCCL, torch and Python give their segments; any other file there is a user's data.
_OURS_BY_NAME = re.compile(r"/dev/shm/(nccl-|torch_|psm_|sem\.mp-)[^/]*$")


def main(root: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    return 0 if clear(root) else 1


def clear(root: str) -> bool:
    """Kills the session's processes and removes the directory; returns whether none was left at the
    deadline.
    """
    deadline = time.monotonic() + _DEADLINE_S
    segments: set[str] = set()
    while (members := _members(root)) and time.monotonic() < deadline:
        for pid in members:
            segments |= _segments_of(pid)
        for pid in members:
            _kill_with_group(pid)
        time.sleep(0.05)
    for segment in segments:
        with contextlib.suppress(OSError):  # It is gone, or belongs to another user.
            Path(segment).unlink()
    if _is_ours(Path(root)):
        _remove(Path(root))
    return not members and not Path(root).exists()


def _is_ours(root: Path) -> bool:
    try:
        found, marker = root.lstat(), (root / MARKER).lstat()
    except OSError:
        return False
    is_this_users = found.st_uid == marker.st_uid == os.geteuid()
    return root.name.startswith(NAME) and stat.S_ISDIR(found.st_mode) and is_this_users


def _remove(root: Path) -> None:
    """Deletes the marker last: a reaper that is killed or fails before that leaves a directory that is
    still ours.
    """
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARKER:
            path.unlink(missing_ok=True)
    if [path.name for path in root.iterdir()] == [MARKER]:
        shutil.rmtree(root, ignore_errors=True)


def _members(root: str) -> list[int]:
    mark = f"{MARK}={root}".encode()
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if mark in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    """Returns nothing for zombies, for other users' processes and for those that just ended."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _segments_of(pid: int) -> set[str]:
    try:
        maps = (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if _SHARED_MEMORY in line)
    return {path for path in paths if _OURS_BY_NAME.match(path) and not path.endswith("(deleted)")}


def _kill_with_group(pid: int) -> None:
    """The new name of Ray's agent may have overwritten its mark, but it is in its raylet's group."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
