"""Names the libraries that this process has loaded, as the loader found them: not those that a package
promises. Needs no torch.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.fingerprint.files import text_of

# Of each family: mathematics, kernels, collectives and their transports, runtimes, memory.
_FAMILIES = re.compile(
    r"lib(cublas|cublasLt|cudnn|cudart|nvrtc|nccl|nccl-net[\w-]*|nvshmem_host|cufile"
    r"|hipblas|hipblaslt|rocblas|MIOpen|aotriton\w*|rccl|rccl-net[\w-]*|amdhip64|hsa-runtime64|hiprtc"
    r"|torch_cpu|torch_cuda|torch_hip|mkl_rt|openblas|gomp|iomp5|omp"
    r"|ucp|fabric|ibverbs|jemalloc|tcmalloc|c)(-[0-9a-f]{6,})?\.so(\.[\w.-]+)?$"
)
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)")
_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_NOTE, _BUILD_ID = 4, 3
# The table of an ELF file's segments and its notes lie at its beginning.
_HEAD_BYTES = 2**16
_BUILD_ID_DIGITS = 12


def loaded_libraries(root: Path = Path("/")) -> Mapping[str, str]:
    """The libraries' versions by name. A file whose name has no version is known by its build."""
    found: dict[str, set[str]] = {}
    for path in sorted(_mapped(text_of(root / "proc/self/maps"))):
        match = _FAMILIES.search(path)
        if match and "/" + match[0] == path[path.rindex("/") :]:
            found.setdefault(f"lib{match[1]}", set()).add(_version(path))
    return {name: " and ".join(sorted(versions)) for name, versions in found.items()}


def _mapped(maps: str) -> Iterator[str]:
    """The files of ``/proc/self/maps``; a file that was deleted since is not one of them."""
    lines = (line.split(maxsplit=5) for line in maps.splitlines())
    yield from {parts[5] for parts in lines if len(parts) == 6 and parts[5].startswith("/")}


def _version(path: str) -> str:
    named = _VERSION.search(Path(path).name)
    return named[1] if named else build_of(Path(path))


def build_of(path: Path) -> str:
    """What tells a library's file from others of its name: the linker's id of the build, or else its size."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        size = path.stat().st_size
    except OSError:
        return "unknown"
    try:
        digits = _build_id(head)
    except (struct.error, ValueError):
        digits = None
    return f"build {digits[:_BUILD_ID_DIGITS]}" if digits else f"{size:,} bytes"


def _build_id(head: bytes) -> str | None:
    if not head.startswith(_ELF_64_LITTLE):
        return None
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, table + number * size)
        if kind == _NOTE and (found := _build_id_among(head[offset : offset + length])):
            return found
    return None


def _build_id_among(notes: bytes) -> str | None:
    place = 0
    while place + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, place)
        name_at = place + 12
        value_at = name_at + _padded(name_size)
        if kind == _BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0":
            return notes[value_at : value_at + size].hex()
        place = value_at + _padded(size)
    return None


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4
