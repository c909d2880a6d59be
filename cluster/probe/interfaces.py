"""Which network interface of this machine leads to its peers.

gloo takes the address that the machine's own name has in its hosts file. That is often 127.0.1.1, which no
other machine reaches. The route to the first rank's machine says better.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address

from cluster.this_machine import interfaces

GLOO = "GLOO_SOCKET_IFNAME"
# Set aside for documentation: the route there is the default one. Nothing is sent.
_ANYWHERE = "192.0.2.1"
_ANY_PORT = 9


class NoInterface(Exception):
    """A variable names an interface that this machine does not have."""


def towards(host: str) -> dict[str, str]:
    """Returns the variables by which gloo advertises an address that ``host`` reaches; a user's stay.

    A host that takes the name for its own loopback, as under ``torchrun``, has that of its default route.
    """
    if os.environ.get(GLOO):
        return {}
    source = source_towards(host)
    if source is None or ip_address(source).is_loopback:
        source = source_towards(_ANYWHERE) or source
    found = interfaces()
    name = interface_of(source, found) if source else None
    # gloo takes the interface's first address, which may be another one: then it chooses better by itself.
    return {GLOO: name} if name and found[name][0] == source else {}


def source_towards(host: str) -> str | None:
    """Returns the address from which this machine would send to ``host``; None without a route."""
    with suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Connecting only looks the route up.
            probe.connect(place)
            return str(probe.getsockname()[0])
    return None


def interface_of(address: str, addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Returns the name of the interface with this address. Loopback has all of 127.0.0.0/8."""
    found = (name for name, of_it in addresses.items() if address in of_it)
    if ip_address(address).is_loopback:
        found = (name for name, of_it in addresses.items() if any(ip_address(a).is_loopback for a in of_it))
    return next(found, None)


def advertised() -> tuple[str, str]:
    """Returns the interface that gloo is told to use, and its address. Both are empty if it is told none.

    Raises ``NoInterface``.
    """
    # gloo takes a list, of which each rank's connections use one after another.
    name = os.environ.get(GLOO, "").split(",")[0]
    if not name:
        return "", ""
    addresses = interfaces()
    if not addresses.get(name):
        raise NoInterface(
            f"{GLOO} names {name}, which {socket.gethostname()} does not have or which has no address; "
            f"expected one of {', '.join(sorted(addresses))}"
        )
    return name, addresses[name][0]
