"""What unfinished uploads leave behind: bytes that no listing shows and that cost money. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from checkpointing.store import Store


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
