"""Seals of the shard cache: what a copy was when its bytes were compared.

A seal lies beside its copy and names the copy's SHA-256 and version. A copy without a seal, or of another
version than its seal names, was left by a killed process or was changed by somebody else: it is not read.
Where no index names the digest of its source, the seal also names the source's version.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from urllib.parse import quote, unquote

from checkpointing.stores.folders import file_in, write_all
from checkpointing.stores.versions import version_of

_MOST_BYTES = 4096
_SEAL = ".seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    sha256: str
    version: str
    source: str | None = None


def version_now(file: FileIO) -> str:
    return version_of(os.fstat(file.fileno()))


def set_seal(folder: int, name: str, seal: Seal) -> None:
    with file_in(folder, _seal_of(name), "w") as file:
        source = "" if seal.source is None else " " + quote(seal.source, safe="")
        write_all(file, memoryview(f"{seal.sha256} {seal.version}{source}\n".encode()))


def seal_on(folder: int, name: str) -> Seal | None:
    with suppress(OSError, ValueError), file_in(folder, _seal_of(name)) as file:
        sha256, version, *source = file.read(_MOST_BYTES).decode().split()
        return Seal(sha256=sha256, version=version, source=unquote(source[0]) if source else None)
    return None


def break_seal(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_seal_of(name), dir_fd=folder)


def is_seal(name: str) -> bool:
    return name.endswith(_SEAL)


def digest_of(file: FileIO) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _seal_of(name: str) -> str:
    return f".{name}{_SEAL}"
