"""The contract of a store: objects by name, each whole or not at all.

Names are relative paths of plain characters joined by ``/``; they never lead out of the store. A reader
sees a whole object or none, also after a crash. A store that can be left with unfinished uploads also
implements ``KeepsUploads``: their bytes cost money and no listing shows them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

_SEGMENT = r"(?!\.)[A-Za-z0-9._+=@-]{1,200}"
_NAME = re.compile(f"{_SEGMENT}(?:/{_SEGMENT})*")


class StoreError(Exception):
    """The store cannot be used; the message says where, what was found and what to do."""


class Unavailable(StoreError):
    """The store did not do it now; a repetition later may work."""


class Full(Unavailable):
    """The store has no room; a repetition helps only after something was deleted."""


class Denied(Unavailable):
    """The store does not permit it now: wrong or expired credentials, a read-only place, or a link."""


class NotAFile(Denied):
    """In a store that is a folder, a link or something that is no file stands in its place."""


class Undecided(Unavailable):
    """The store did not say whether the write had effect. Either another request for the same name was
    under way, or the name was refused as taken while nothing is there.

    The caller must ask again and must never conclude that another writer has won.
    """


class Conflict(StoreError):
    """``create`` found the name taken: another writer was first."""


class Missing(StoreError):
    """No object of that name exists."""


Buffer = bytes | memoryview


class Store(Protocol):
    """Keeps objects by name. ``put`` replaces atomically; exactly one caller of ``create`` wins.

    A server's answer to ``create`` may get lost, and then only the object shows who wrote it. The bytes
    given to ``create`` must therefore identify their writer: a caller that finds exactly its own bytes has
    won.
    """

    url: str

    def probe(self) -> None:
        """Raises ``StoreError`` unless objects can be written here."""

    def put(self, name: str, data: Buffer) -> None: ...

    def create(self, name: str, data: Buffer) -> None: ...

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        """Fills ``into`` with the bytes from ``start`` on. Returns their number, which is smaller only at
        the end.
        """

    def size(self, name: str) -> int:
        """Returns the size in bytes with one request that reads none of them. Raises ``Missing`` if there
        is no such object.
        """

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Yields all names below the folder ``prefix`` that sort after ``after``, in no order.

        Yields nothing if there is no such folder. Costs about one request per thousand names.
        """

    def contents(self) -> Iterator[str]:
        """Yields the names of everything in the store, in no order.

        That includes files of others, whose names may break the rules: such a name can be shown, but not
        used.
        """

    def delete(self, name: str) -> None:
        """Deletes the object; a missing object is no error."""


def is_name(name: str) -> bool:
    """Says whether ``name`` stays inside the store and is plain on every platform."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    if is_name(name):
        return name
    raise StoreError(
        f"store: {name!r} is not a name (letters, digits and ._+=@- between slashes, no leading dot)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An unfinished upload. ``started`` is by the server's clock. ``id`` is empty for an object that still
    has its temporary name.
    """

    name: str
    id: str
    started: datetime


@runtime_checkable
class KeepsUploads(Protocol):
    """A store that can be left with unfinished uploads."""

    def abandoned_uploads(self, prefix: str, *, before: datetime) -> Sequence[Upload]:
        """Returns uploads below the folder ``prefix`` that started before ``before``, whoever
        started them.
        """

    def abort_uploads(self, uploads: Sequence[Upload]) -> None:
        """Deletes the bytes of ``uploads``. An upload that was finished or aborted meanwhile is no error."""


def abandoned_uploads(store: Store, prefix: str, *, before: datetime) -> Sequence[Upload]:
    """Returns the unfinished uploads; none for a store that keeps none, such as memory."""
    return store.abandoned_uploads(prefix, before=before) if isinstance(store, KeepsUploads) else ()


def abort_uploads(store: Store, uploads: Sequence[Upload]) -> None:
    if isinstance(store, KeepsUploads):
        store.abort_uploads(uploads)
