"""The kernel's filter before a port: from which addresses packets come in. Linux alone has it."""

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType

from cluster.this_machine import listening

# Of the kernel's headers (``linux/filter.h``, ``asm-generic/socket.h``), which Python lacks.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_BYTE, _WORD, _AND, _STORE, _LOAD, _IF_EQUAL, _GO, _RETURN = 0x30, 0x20, 0x54, 0x02, 0x60, 0x15, 0x05, 0x06
_IP_HEADER = 2**32 - 2**20
_SOURCE, _BITS = MappingProxyType({4: 12, 6: 8}), MappingProxyType({4: 32, 6: 128})
_WHOLE = 2**32 - 1
# A kernel may give a socket no more than 20 KB, for its filter and the next one. With more addresses than
# these, their neighbours in the smallest networks that hold them come in too.
_MOST_NETWORKS = MappingProxyType({4: 128, 6: 32})
_LAZY = "TORCH_GLOO_LAZY_INIT"


def admit(listener: socket.socket, addresses: Iterable[str]) -> None:
    """Has the kernel drop what all others send to this port. Raises ``OSError`` if the kernel can't: then
    nobody is kept off, nor by an earlier filter.
    """
    program = b"".join(struct.pack("HBBI", *step) for step in _program([*map(_plain, addresses)]))
    lines = ctypes.create_string_buffer(program)
    told = struct.pack("HP", len(program) // 8, ctypes.addressof(lines))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, told)
    except OSError:
        let_all_in(listener)
        raise


def let_all_in(listener: socket.socket) -> None:
    with suppress(OSError):  # It has no filter.
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def close_ports(words: bytes) -> None:
    """Nobody reaches a port of this process any more whose address stands in ``words`` as the kernel has it.

    gloo says so where it listens, for as long as its group lives: once a group is connected, nobody but
    strangers comes. At the first who comes when no file can be opened, gloo ends the process.
    """
    if os.environ.get(_LAZY, "0") != "0":  # Ranks connect when they first speak to each other.
        return
    for number, place in listening().items():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as listener:
            # The file may have been closed since, and another one have its number.
            if listener.getsockname()[:2] == place and _as_the_kernel_has_it(*place) in words:
                admit(listener, [])


def _as_the_kernel_has_it(address: str, port: int) -> bytes:
    host = ip_address(address)
    place = struct.pack("!H", port)
    if host.version == 4:
        return struct.pack("=H", socket.AF_INET) + place + host.packed
    # Between them stands a number that is 0.
    return struct.pack("=H", socket.AF_INET6) + place + bytes(4) + host.packed


# A gate of thousands of ranks asks again and again.
@lru_cache(2**16)
def _plain(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address)
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _program(single: Collection[IPv4Address | IPv6Address]) -> list[tuple[int, int, int, int]]:
    """Returns a program of the classic packet filter: operation, two jumps and a number for each step."""
    of_4, of_6 = (
        _let_in(version, {int(one) for one in single if one.version == version}) for version in (4, 6)
    )
    version = [(_BYTE, 0, 0, _IP_HEADER), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 0, 1, 0x60)]
    return [*version, (_GO, 0, 0, len(of_4)), *of_4, *of_6]


def _let_in(version: int, addresses: Collection[int]) -> list[tuple[int, int, int, int]]:
    num_bits, num_free = _BITS[version], 0
    while len({one >> num_free for one in addresses}) > _MOST_NETWORKS[version]:
        num_free += 1
    networks = {one >> num_free << num_free for one in addresses}
    steps: list[tuple[int, int, int, int]] = []
    if networks:
        for number, mask in enumerate(_words((1 << num_bits) - (1 << num_free), num_bits)):
            word = _IP_HEADER + _SOURCE[version] + 4 * number
            steps += [(_WORD, 0, 0, word), (_AND, 0, 0, mask), (_STORE, 0, 0, number)]
    for network in networks:
        words = _words(network, num_bits)
        for number, word in enumerate(words):
            to_next = 2 * (len(words) - number) - 1
            steps += [(_LOAD, 0, 0, number), (_IF_EQUAL, 0, to_next, word)]
        steps.append((_RETURN, 0, 0, _WHOLE))
    return [*steps, (_RETURN, 0, 0, 0)]


def _words(number: int, num_bits: int) -> tuple[int, ...]:
    return struct.unpack(f"!{num_bits // 32}I", number.to_bytes(num_bits // 8, "big"))
