"""The process that holds a run's lease, and whether it is still there, as far as this machine can tell."""

import os
import socket
from pathlib import Path
from typing import Literal

OwnerState = Literal["gone", "alive", "elsewhere"]
# The place of a process's start time among what follows its name in /proc/PID/stat.
_STARTED = 19


def owner_name(pid: int) -> str:
    """A name that no other process has, also after a restart of the machine or in another container."""
    return f"{socket.gethostname()}:{pid} {_started(pid)} {_machine()}"


def state_of(owner: str) -> OwnerState:
    """``elsewhere`` if the process is of another machine or container, or if nobody can tell."""
    try:
        place, started, machine = owner.split(" ")
        pid = int(place.rpartition(":")[2])
    except ValueError:
        return "elsewhere"
    if machine != _machine() or not started:
        return "elsewhere"
    return "alive" if _started(pid) == started and pid != os.getpid() else "gone"


def _machine() -> str:
    """The boot of the machine, and the namespace in which its process numbers count."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"unknown/{os.getpid()}"


def _started(pid: int) -> str:
    """When the process started, in the kernel's ticks; empty if there is none, or only its remains."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = status.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[_STARTED - 1]
