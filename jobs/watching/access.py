"""Who may see the page: who knows the token, and asks for it by a name of this machine. Pure.

Other users of this machine reach its loopback too, so a token is needed there as well. It is sent in a
header, never in a cookie: a browser would send a cookie to every port of the same host.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

LEAST_TOKEN = 16
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9.-]{1,253}))(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """``names`` are this machine's own, in small letters."""

    token: str
    names: Collection[str] = ()

    def knows_token(self, authorization: str | None) -> bool:
        given = (authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def is_ours(self, host: str | None) -> bool:
        """Whether a page of somebody else's name can't have asked (DNS rebinding): addresses are no names."""
        found = _HOST.fullmatch(host or "")
        if found is None:
            return False
        name = (found["six"] or found["name"]).lower()
        return name == "localhost" or name in self.names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
