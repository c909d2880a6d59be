"""What crashed saves and deletions left in a store: nothing that counts, but bytes that take room.

Only what can never be committed any more is left over: halves of attempts that are over, or what is given up
in the log. A whole generation that the log does not name is no leftover: its commit may be what was lost. It
is named, and deleted only by who asks for exactly that.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from checkpointing.generations.repository import Repository
from checkpointing.stores.contract import Missing, Store, Upload, abandoned_uploads, abort_uploads

_NUM_THREADS = 8
# Longer than any save's deadline.
_UPLOADS_TAKE_AT_MOST = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageGeneration:
    """Objects of one generation that no record keeps, and why they are of no use."""

    generation: str
    why: str
    objects: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """``unnamed`` look whole, and the log may have lost their commits: they stay unless asked for.

    ``uploads`` began so long ago that nobody goes on with them; how large they are no store tells.
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

    @property
    def num_unnamed_bytes(self) -> int:
        return sum(one.num_bytes for one in self.unnamed)


def find_leftovers(repository: Repository, *, now: datetime) -> Garbage:
    """Changes nothing. Call it after ``refresh``."""
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


def sweep(repository: Repository, *, now: datetime) -> None:
    """Removes what earlier attempts left, without measuring it. Spares what looks whole and was never given
    up, and, however wrong ``now`` is, every save that may be going on.
    """
    for name, objects in repository.expendable().items():
        repository.delete_objects(name, objects)
    uploads = _old_uploads(repository, now)
    over = [upload for upload in uploads if not repository.is_of_present_term(upload.name)]
    abort_uploads(repository.store, over)


def remove(repository: Repository, leftovers: Garbage, *, with_unnamed: bool = False) -> None:
    """Doing it again after it was interrupted is harmless. ``with_unnamed`` is for who saw their names."""
    chosen = (*leftovers.remainders, *(leftovers.unnamed if with_unnamed else ()))
    repository.delete_unnamed({one.generation: one.objects for one in chosen})
    abort_uploads(repository.store, leftovers.uploads)


def _old_uploads(repository: Repository, now: datetime) -> Sequence[Upload]:
    before = now - _UPLOADS_TAKE_AT_MOST
    return abandoned_uploads(repository.store, f"runs/{repository.run}", before=before)


def _given_up(repository: Repository, over: set[str]) -> dict[str, list[str]]:
    """Of the present attempt: what is not kept may be a save that goes on, unless the log says otherwise."""
    waiting = {name for name in repository.foreign() if not repository.view.generation(name)} - over
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
    """0 if it is gone by now."""
    try:
        return store.size(name)
    except Missing:
        return 0
