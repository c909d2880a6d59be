"""Which processes of this user listen where, by what the kernel tells in ``/proc``.

Processes of other users are neither seen nor judged. A dashboard, an agent or an autoscaler of Ray is asked,
on loopback and without a token, for what it must not give.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from jobs.doctor.security.exposure import Listener, Owner

PROC = Path("/proc")
_LISTENS = "0A"
_MOST_BYTES = 4 * 2**20
_ANSWER_S = 2.0
_PAGE_BYTES = 65536
JOBS, FIGURES = "/api/jobs/", "/metrics"
_SERVES_PAGES = ("dashboard", "agent", "monitor.py")


def listeners(proc: Path = PROC) -> tuple[Listener, ...]:
    """Returns the sockets of this user's processes that take TCP connections, by process and port."""
    places = {inode: place for table in ("tcp", "tcp6") for inode, place in _table(proc / "net" / table)}
    found = [
        _listener(process, *places[inode])
        for process in own_processes(proc)
        for inode in _sockets_of(process)
        if inode in places
    ]
    return tuple(sorted(set(found), key=lambda one: (one.pid, one.port, one.address)))


def _table(path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yields the inode, and the address with its port, of each socket that listens."""
    for line in _read(path).decode("ascii", "replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTENS:
            with suppress(ValueError, OSError, struct.error):
                yield fields[9], place_of(fields[1])


def place_of(text: str) -> tuple[str, int]:
    """Returns the address and port of the kernel's ``0100007F:1F90``: words of four bytes, as the machine
    orders them.
    """
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    name = socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)
    return name.removeprefix("::ffff:") if "." in name else name, int(port, 16)


def own_processes(proc: Path = PROC) -> Iterator[Path]:
    """Yields the folders of this user's processes."""
    for process in sorted(proc.iterdir()):
        with suppress(OSError):  # It has ended.
            if process.name.isdecimal() and process.stat().st_uid == os.geteuid():
                yield process


def _sockets_of(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def _listener(process: Path, address: str, port: int) -> Listener:
    words = command_of(process)
    owner = _owner(words)
    name = Path(words[0].split()[0]).name if words and words[0].split() else "unknown"
    if name.startswith("python") and len(words) > 1:
        name = next((Path(word).name for word in words[1:] if not word.startswith("-")), name)
    return Listener(
        address=address,
        port=port,
        pid=int(process.name),
        process=name,
        owner=owner,
        asks_for_token=_asks_for_token(process) if owner == "ray" else None,
        open_path=open_path(address, port) if owner == "ray" and _serves_pages(words) else None,
    )


def command_of(process: Path) -> list[str]:
    return _read(process / "cmdline").decode("utf-8", "replace").rstrip("\0").split("\0")


def _owner(words: list[str]) -> Owner:
    text = " ".join(words[:4])
    if text.startswith("ray::") or "/ray/core/src/" in text or "/site-packages/ray/" in text:
        return "ray"
    names = {Path(word).name for word in words[:3]}
    return (
        "longhaul" if "longhaul" in names or any(word.startswith("jobs.") for word in words[:4]) else "other"
    )


def _serves_pages(words: list[str]) -> bool:
    return any(name in word.lower() for word in words[:4] for name in _SERVES_PAGES)


def _asks_for_token(process: Path) -> bool | None:
    """Whether the process was started in token mode; None if its environment can't be read any more.

    A worker or agent of Ray writes its title over the beginning of it.
    """
    variables = _read(process / "environ").split(b"\0")
    if any(one.lower() == b"ray_auth_mode=token" for one in variables):
        return True
    return False if b"=" in variables[0] else None


def open_path(address: str, port: int) -> str | None:
    """Returns what is given to somebody without a token; None if it is nothing.

    Ray gives its figures to everybody who reaches the port. On loopback that is left out.
    """
    answer = _answer(address, port, JOBS)
    if answer.startswith((b"[", b"{")):
        return JOBS
    is_beyond = not address.startswith("127.") and address != "::1"
    return FIGURES if is_beyond and b"# HELP" in _answer(address, port, FIGURES) else None


def _answer(address: str, port: int, path: str) -> bytes:
    """Returns the beginning of the page at an address of this machine; nothing if it is refused."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    connection = HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(_PAGE_BYTES) if answer.status == HTTPStatus.OK else b""
    except (OSError, HTTPException):
        return b""
    finally:
        connection.close()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""
