"""Garbage that crashed saves and deletions left in a store: bytes that count for nothing but take room.

Garbage is only what can never be committed any more: incomplete saves of attempts that are over, and
generations that the log gave up. A whole generation that the log does not name is no garbage, because its
commit may be what was lost. It is listed, and deleted only on explicit request.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import (
    Missing,
    Store,
    StoreError,
    Upload,
    abandoned_uploads,
    abort_uploads,
)

UPLOADS = "uploads"
_NUM_THREADS = 8
# The limit is longer than any save's deadline.
_UPLOADS_TAKE_AT_MOST = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageGeneration:
    """Objects of one generation that the log does not keep, and why they are of no use."""

    generation: str
    why: str
    objects: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """All garbage of one run. ``unnamed`` generations look whole, and the log may have lost their commits:
    they stay unless their deletion is requested.

    ``uploads`` began so long ago that no writer continues them. No store tells their sizes.
    """

    remainders: tuple[GarbageGeneration, ...]
    uploads: tuple[Upload, ...]
    unnamed: tuple[GarbageGeneration, ...]

    @property
    def spared(self) -> tuple[str, ...]:
        return tuple(one.generation for one in self.unnamed)

    @property
    def num_objects(self) -> int:
        return sum(len(one.objects) for one in self.remainders)

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.remainders)


def find_garbage(repository: Repository, *, now: datetime) -> Garbage:
    """Lists the garbage and changes nothing. Call it after ``refresh``."""
    over, expendable = repository.garbage(), repository.expendable()
    found = [(name, "attempt is over", expendable[name]) for name in sorted(expendable)]
    given_up = _given_up(repository, set(over))
    found += [(name, "given up", objects) for name, objects in sorted(given_up.items())]
    unnamed = [(name, "whole, but not in the log", over[name]) for name in sorted(over.keys() - expendable)]
    return Garbage(
        remainders=tuple(_remainder(repository.store, *one) for one in found),
        uploads=tuple(_old_uploads(repository, now)),
        unnamed=tuple(_remainder(repository.store, *one) for one in unnamed),
    )


def sweep(repository: Repository, *, term: int, now: datetime) -> None:
    """Removes what attempts before that of ``term`` left, without measuring it.

    Generations that look whole and were never given up stay. Saves that may be in progress also stay, even
    if ``now`` is wrong. A generation that the store refuses to delete is no error: see
    ``Repository.not_deleted``.
    """
    repository.discard(repository.expendable(), term=term)
    uploads = _old_uploads(repository, now)
    over = [upload for upload in uploads if not repository.is_of_present_term(upload.name)]
    abort_uploads(repository.store, over)


def remove(
    repository: Repository, garbage: Garbage, *, with_unnamed: bool = False
) -> Mapping[str, StoreError]:
    """Removes the garbage; a second call after an interruption is harmless. Pass ``with_unnamed`` only if
    the user has seen the names of the unnamed generations.

    Goes on behind what the store refuses to delete, and returns that: generations, and ``UPLOADS`` if any
    upload stays.
    """
    chosen = (*garbage.remainders, *(garbage.unnamed if with_unnamed else ()))
    refused = dict(repository.delete_unnamed({one.generation: one.objects for one in chosen}))
    try:
        abort_uploads(repository.store, garbage.uploads)
    except StoreError as error:
        refused[UPLOADS] = error
    return refused


def _old_uploads(repository: Repository, now: datetime) -> Sequence[Upload]:
    before = now - _UPLOADS_TAKE_AT_MOST
    return abandoned_uploads(repository.store, f"runs/{repository.run}", before=before)


def _given_up(repository: Repository, over: set[str]) -> dict[str, list[str]]:
    """Returns given-up objects of the present attempt. Its other objects may belong to a save in progress."""
    waiting = {
        name for name in repository.stored_generations() if not repository.view.generation(name)
    } - over
    if not waiting:
        return {}
    found = {name: repository.objects_of(name) for name in waiting & repository.given_up()}
    return {name: objects for name, objects in found.items() if objects}


def _remainder(store: Store, generation: str, why: str, objects: Sequence[str]) -> GarbageGeneration:
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="size") as pool:
        num_bytes = sum(pool.map(partial(_size_of, store), objects))
    return GarbageGeneration(
        generation=generation, why=why, objects=tuple(sorted(objects)), num_bytes=num_bytes
    )


def _size_of(store: Store, name: str) -> int:
    """Returns the size in bytes, or 0 if the object is gone by now."""
    try:
        return store.size(name)
    except Missing:
        return 0
