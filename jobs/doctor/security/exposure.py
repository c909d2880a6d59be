"""The observations of ``longhaul doctor --security``, as plain data, before any check. Pure."""

from dataclasses import dataclass
from typing import Literal

Owner = Literal["ray", "longhaul", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A TCP socket of this user that takes connections.

    ``asks_for_token`` is None if the process does not show its environment. ``open_path`` is a page that it
    gave to somebody without a token.
    """

    address: str
    port: int
    pid: int
    process: str
    owner: Owner
    asks_for_token: bool | None = None
    open_path: str | None = None

    @property
    def is_on_loopback(self) -> bool:
        return self.address.startswith("127.") or self.address == "::1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder or file whose content is believed. ``writers`` and ``readers`` say which other users may
    write to it or read it, given all folders above: empty for nobody, else "the group" or "everybody".
    """

    path: str
    what: str
    owner: int
    is_ours: bool
    writers: str = ""
    readers: str = ""
    is_secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseSecret:
    """A secret that others can read. ``place`` and ``name`` never hold its value."""

    place: str
    name: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the store allowed although it should not, and what it refused. ``failed`` says why nothing more
    was tried.
    """

    store: str
    allowed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """All observations. ``joins`` is the cluster that ``RAY_ADDRESS`` names, if any."""

    listeners: tuple[Listener, ...] = ()
    folders: tuple[Folder, ...] = ()
    secrets: tuple[LooseSecret, ...] = ()
    trial: Trial | None = None
    joins: str | None = None
    has_token_mode: bool = False
