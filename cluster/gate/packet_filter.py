"""The kernel's filter before a port: from which addresses packets come in. Linux alone has it."""

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from stat import S_ISSOCK
from types import MappingProxyType

# Of the kernel's headers (``linux/filter.h``, ``asm-generic/socket.h``), which Python lacks.
_SO_ATTACH_FILTER = 26
_BYTE, _WORD, _AND, _STORE, _LOAD, _IF_EQUAL, _GO, _RETURN = 0x30, 0x20, 0x54, 0x02, 0x60, 0x15, 0x05, 0x06
_IP_HEADER = 2**32 - 2**20
_SOURCE = MappingProxyType({4: 12, 6: 8})
_WHOLE = 2**32 - 1
# A kernel may give a socket no more than 20 KB, for its filter and the next one. With more addresses than
# these, their neighbours in the smallest networks that hold them come in too.
_MOST_NETWORKS = MappingProxyType({4: 128, 6: 32})

Network = IPv4Network | IPv6Network


def admit(listener: socket.socket, addresses: Iterable[str]) -> None:
    """Has the kernel drop what all others send to this port. Raises ``OSError`` if the kernel can't."""
    program = b"".join(struct.pack("HBBI", *step) for step in _program([*map(_networked, addresses)]))
    lines = ctypes.create_string_buffer(program)
    told = struct.pack("HP", len(program) // 8, ctypes.addressof(lines))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, told)


@contextmanager
def closed_afterwards() -> Iterator[None]:
    """Afterwards, nobody reaches any port that this process began to listen at inside.

    gloo listens for as long as its group lives, and each group for itself: once a group is connected, nobody
    but strangers comes. At the first who comes when no file can be opened, gloo ends the process.
    """
    before = _listening().keys()
    yield
    for inode, number in _listening().items():
        if inode not in before:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as listener:
                admit(listener, [])


def _listening() -> dict[int, int]:
    """Returns the inodes and numbers of this process's files at which it listens to the network."""
    found = {}
    for number in (int(path.name) for path in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            status = os.fstat(number)
            if S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    is_listener = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if is_listener and one.family in (socket.AF_INET, socket.AF_INET6):
                        found[status.st_ino] = number
    return found


def _networked(address: str) -> Network:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return ip_network(found)


def _program(single: Collection[Network]) -> list[tuple[int, int, int, int]]:
    """Returns a program of the classic packet filter: operation, two jumps and a number for each step."""
    of_4, of_6 = (_let_in(version, [one for one in single if one.version == version]) for version in (4, 6))
    version = [(_BYTE, 0, 0, _IP_HEADER), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 0, 1, 0x60)]
    return [*version, (_GO, 0, 0, len(of_4)), *of_4, *of_6]


def _let_in(version: int, single: Collection[Network]) -> list[tuple[int, int, int, int]]:
    networks = {*single}
    while len(networks) > _MOST_NETWORKS[version]:
        networks = {network.supernet() for network in networks}
    steps: list[tuple[int, int, int, int]] = []
    if networks:
        for number, mask in enumerate(_words(next(iter(networks)).netmask.packed)):
            word = _IP_HEADER + _SOURCE[version] + 4 * number
            steps += [(_WORD, 0, 0, word), (_AND, 0, 0, mask), (_STORE, 0, 0, number)]
    for network in networks:
        words = _words(network.network_address.packed)
        for number, word in enumerate(words):
            to_next = 2 * (len(words) - number) - 1
            steps += [(_LOAD, 0, 0, number), (_IF_EQUAL, 0, to_next, word)]
        steps.append((_RETURN, 0, 0, _WHOLE))
    return [*steps, (_RETURN, 0, 0, 0)]


def _words(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(packed) // 4}I", packed)
