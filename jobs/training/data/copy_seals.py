"""Seals of the shard cache: what a copy was when its bytes were compared.

A seal lies beside its copy and names the copy's SHA-256 and version. A copy without a seal, or of another
version than its seal names, was left by a killed process or was changed by somebody else: it is not read.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO

from checkpointing.stores.folders import file_in, write_all
from checkpointing.stores.versions import version_of

_MOST_BYTES = 200
_SEAL = ".seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    sha256: str
    version: str


def version_now(file: FileIO) -> str:
    return version_of(os.fstat(file.fileno()))


def set_seal(folder: int, name: str, seal: Seal) -> None:
    with file_in(folder, _seal_of(name), "w") as file:
        write_all(file, memoryview(f"{seal.sha256} {seal.version}\n".encode()))


def seal_on(folder: int, name: str) -> Seal | None:
    with suppress(OSError, ValueError), file_in(folder, _seal_of(name)) as file:
        sha256, version = file.read(_MOST_BYTES).decode().split()
        return Seal(sha256=sha256, version=version)
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
