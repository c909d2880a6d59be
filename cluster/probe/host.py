"""Facts of a node apart from its devices: versions, memory, disk and driver. Needs no torch."""

import os
import re
import secrets
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from cluster.probe.node_facts import PACKAGES, DiskFacts, NodePlatform

_SHARED_MEMORY = Path("/dev/shm")
_DRIVERS = {"cuda": "proc/driver/nvidia/version", "rocm": "sys/module/amdgpu/version"}
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

_CHUNK_BYTES = 4 * 2**20
_NUM_CHUNKS = 16
_NUM_SYNCS = 5
# A disk that takes longer than this has been shown to be slow.
_LONGEST_WRITE_S = 3.0


def versions() -> dict[str, str | None]:
    """Of Python, and of what must be equal on nodes."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: version_of(name) for name in PACKAGES},
    }


def visible_devices() -> dict[str, str]:
    return {name: os.environ[name] for name in _HIDING if name in os.environ}


def shared_memory_bytes() -> int | None:
    return shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None


def kernel_driver(platform: NodePlatform, *, root: Path = Path("/")) -> str | None:
    """Returns the version that the kernel module states; None if no module is loaded or it states none."""
    name = _DRIVERS.get(platform)
    found = re.search(r"\d+\.\d+(\.\d+)*", _text_of(root / name)) if name else None
    return found[0] if found else None


def measure_disk(folder: Path) -> DiskFacts:
    """Writes at most 64 MiB to a file that is deleted afterwards; raises ``OSError``.

    A missing folder is not created: its nearest existing parent is measured. A leading ``~`` means this
    node's home.
    """
    folder = folder.expanduser()
    folder = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    path = folder / f".longhaul-doctor-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        rate, sync_s = _write_rate(descriptor), _sync_time(descriptor)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    return DiskFacts(folder=str(folder), free_bytes=free, write_bytes_per_s=rate, fsync_s=sync_s)


def _write_rate(descriptor: int) -> float:
    # Random bytes, because some disks and file systems write zeros faster.
    chunk = secrets.token_bytes(_CHUNK_BYTES)
    start = time.perf_counter()
    written = 0
    for _ in range(_NUM_CHUNKS):
        written += os.write(descriptor, chunk)
        if time.perf_counter() - start > _LONGEST_WRITE_S:
            break
    os.fsync(descriptor)
    return written / (time.perf_counter() - start)


def _sync_time(descriptor: int) -> float:
    times = []
    for _ in range(_NUM_SYNCS):
        start = time.perf_counter()
        os.write(descriptor, bytes(4096))
        os.fsync(descriptor)
        times.append(time.perf_counter() - start)
    return median(times)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def version_of(package: str) -> str | None:
    """The installed version; None if the package is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
