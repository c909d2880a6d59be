"""Takes a process its memory, until the kernel ends it for want of any. Needs root, and control groups."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
# What it has stays its own. More than that it does not get.
_BYTES = 1 << 20


def why_not() -> str | None:
    """Why no process can be ended in this way; None where it can."""
    is_there = (_GROUPS / "memory/memory.limit_in_bytes").exists()
    return None if is_there and os.geteuid() == 0 else "control groups of memory (v1) are not there"


@contextmanager
def without_memory(process: psutil.Process) -> Iterator[None]:
    """Whatever it allocates from now on is at most a mebibyte. The kernel ends it soon."""
    group = _GROUPS / f"memory/longhaul-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(_BYTES))
        (group / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        with suppress(ProcessLookupError):
            for member in (group / "cgroup.procs").read_text().split():
                (_GROUPS / "memory/cgroup.procs").write_text(member)
        group.rmdir()
