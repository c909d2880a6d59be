"""The contract of a store: objects by name, whole or not at all.

Names are relative paths of plain characters joined by ``/``; they never escape the store. A reader sees a
whole object or none, also after a crash. A store in which unfinished uploads can be left over also keeps
``KeepsUploads``: those bytes cost money and no listing shows them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

_SEGMENT = r"(?!\.)[A-Za-z0-9._+=@-]{1,200}"
_NAME = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")


class StoreError(Exception):
    """The store can't be used; the message says where, what was found and what to do."""


class Unavailable(StoreError):
    """The store did not do it now; doing it again later may work."""


class Full(Unavailable):
    """No room: doing it again helps once something was deleted."""


class Denied(Unavailable):
    """Not allowed to, now: credentials that are wrong or ran out, a place that can only be read, a link."""


class Undecided(Unavailable):
    """Neither yes nor no: refused because of another request for the same name, or refused as taken while
    nothing is there. To be asked again, and never to be read as somebody else's doing.
    """


class Conflict(StoreError):
    """``create`` found the name taken: another writer was first."""


class Missing(StoreError):
    """No object of that name."""


Buffer = bytes | memoryview


class Store(Protocol):
    """Objects by name. ``put`` replaces atomically; ``create`` is won by exactly one caller.

    A server's answer to ``create`` may get lost, and then only the object tells who wrote it. So the bytes of
    what is to be won by one must name their writer: who finds exactly its own bytes there has won.
    """

    url: str

    def probe(self) -> None:
        """Raises ``StoreError`` unless objects can be written here."""

    def put(self, name: str, data: Buffer) -> None: ...

    def create(self, name: str, data: Buffer) -> None: ...

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """Fills ``into`` with the bytes from ``start`` on; how many there were, fewer only at the end."""

    def size(self, name: str) -> int:
        """In bytes, from one request that reads none of them. ``Missing`` where no object of that name is."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """All names below the folder ``prefix`` that sort behind ``after``, in no order.

        Nothing where there is no such folder. One request per thousand names or so.
        """

    def contents(self) -> Iterator[str]:
        """The names of all that lies here, in no order, also of what others put here and what is no object:
        a name that is none of ours can be told of, not used.
        """

    def delete(self, name: str) -> None:
        """What is not there is deleted already."""


def is_name(name: str) -> bool:
    """Whether it stays inside the store and is plain on every platform."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    if is_name(name):
        return name
    raise StoreError(
        f"store: {name!r} is not a name (letters, digits and ._+=@- between slashes, no leading dot)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """``started`` is by the server's clock. ``id`` is empty for an object still under its side name."""

    name: str
    id: str
    started: datetime


@runtime_checkable
class KeepsUploads(Protocol):
    """A store in which uploads can be left over."""

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        """Those of names below the folder ``prefix`` that started before, whoever started them."""

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        """Their bytes are gone afterwards. What was finished or aborted meanwhile is no error."""


def abandoned_uploads(store: Store, prefix: str, *, before: datetime) -> Sequence[Upload]:
    """None where a store keeps none, as the memory does."""
    return store.abandoned_uploads(prefix, before=before) if isinstance(store, KeepsUploads) else ()


def abort_uploads(store: Store, uploads: Sequence[Upload]) -> None:
    if isinstance(store, KeepsUploads):
        store.abort_uploads(uploads)
