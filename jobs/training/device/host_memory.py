"""The host memory of this process: what it holds, its peak, and a bound on what it may add.

The bound is ``RLIMIT_DATA`` above the idle process. An allocation beyond it raises in this process,
where it can be caught, instead of taking the machine down; shared mappings are not counted.
"""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

# As malloc.h numbers it.
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 4 * 2**20


def resident_bytes() -> int:
    return _status("VmRSS")


def reset_peak() -> int:
    """Forgets the peak so far; returns what is resident now."""
    give_back_freed_memory()
    # Some containers forbid it; the peak then covers the process's whole life.
    with suppress(OSError):
        _CLEAR_REFS.write_text(_RESET_PEAK)
    return resident_bytes()


def peak_bytes() -> int:
    return _status("VmHWM")


@contextmanager
def budget(extra_bytes: int | None) -> Iterator[None]:
    """Inside, the process may hold at most ``extra_bytes`` of private data more than at the start."""
    if extra_bytes is None:
        yield
        return
    give_back_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + extra_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def return_large_pieces() -> None:
    """From now on a freed piece of 4 MiB or more goes back to the system at once.

    glibc raises that bound to 32 MiB by itself, and a process that gathers and frees weights then holds
    up to twice what is live. A lower one would make every small step pay for fresh pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back_freed_memory() -> None:
    """Returns what malloc keeps for later, so that one run's leftovers don't count for the next."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")
