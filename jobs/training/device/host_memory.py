"""The host memory of this process: how much it holds, its peak, and a limit on how much it may add.

The limit is an ``RLIMIT_DATA`` above the idle process's use. An allocation beyond the limit raises in this
process, where it can be caught, instead of taking the machine down. Shared mappings are not counted.
"""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"

# The number of this option in malloc.h.
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 4 * 2**20


def resident_bytes() -> int:
    return _status("VmRSS")


def data_bytes() -> int:
    """The private data of this process, which ``budget`` limits."""
    return _status("VmData")


def reset_peak() -> int:
    """Forgets the peak so far; returns the bytes that are resident now."""
    give_back_freed_memory()
    # Some containers forbid the reset; the peak then covers the process's whole life.
    with suppress(OSError):
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="utf-8")
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
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + extra_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def return_large_pieces() -> None:
    """Makes malloc return each freed piece of 4 MiB or more to the system at once, from now on.

    By itself glibc raises that threshold to 32 MiB, and a process that gathers and frees weights then holds
    up to twice its live memory. A threshold below 4 MiB would make every small step pay for fresh pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back_freed_memory() -> None:
    """Returns freed memory that malloc caches, so that one run's memory doesn't count for the next run."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(field: str) -> int:
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")
