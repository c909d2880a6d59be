"""Finds the address under which the other nodes of a job reach this one. Pure."""

import socket

_ANY_PORT = 9


def address_towards(peer: str) -> str:
    """Returns this machine's address on the way to ``peer``, a name or an address. Nothing is sent.

    A machine's own name may stand for 127.0.1.1, and where there is no way to the internet Ray finds no
    address by itself.
    """
    family, _, _, _, target = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    """Returns a port that nothing listens on; the kernel does not give it away again for a while."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
