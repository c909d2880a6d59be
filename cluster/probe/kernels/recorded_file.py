"""Reads a user's file of recorded digests, and adds to it without ever leaving half of one."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cluster.probe.kernels.recorded import NotRecorded, Recorded, as_text, parsed
from cluster.yaml_file import read_named

_MOST_BYTES = 2**22
_MODE = 0o644


def in_file(path: Path) -> tuple[Recorded, ...]:
    """Raises ``NotRecorded``."""
    try:
        data = read_named(path, _MOST_BYTES)
        if len(data) > _MOST_BYTES:
            raise NotRecorded(f"{path}: is larger than {_MOST_BYTES // 2**20} MiB")
        return parsed(data.decode(), str(path))
    except FileNotFoundError as error:
        raise NoSuchFile(f"{path}: {error.strerror}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise NotRecorded(f"{path}: {getattr(error, 'strerror', None) or error}") from error


class NoSuchFile(NotRecorded):
    """There is no file of that name."""


def in_file_if_any(path: Path) -> tuple[Recorded, ...]:
    """Raises ``NotRecorded`` for what is no such file."""
    try:
        return in_file(path)
    except NoSuchFile:
        return ()


def add(path: Path, new: Iterable[Recorded]) -> tuple[Recorded, ...]:
    """Adds ``new`` to what the file holds now; of one kind the new one replaces the old one. Returns those
    of the file whose digests were others. Raises ``NotRecorded`` and ``OSError``.
    """
    before, new = in_file_if_any(path), tuple(new)
    kinds = {one.kind: one.digests for one in new}
    _replace(Path(os.path.realpath(path)), as_text([*before, *new]))
    return tuple(one for one in before if kinds.get(one.kind, one.digests) != one.digests)


def _replace(path: Path, text: str) -> None:
    """A full disk, or a second writer, leaves the file as it was."""
    mode = path.stat().st_mode & 0o777 if path.exists() else _MODE
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
