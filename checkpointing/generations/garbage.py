"""What crashed saves and deletions left in a store: nothing that counts, but bytes that take room.

Only what can never be committed any more is left over: of attempts that are over, or given up in the log.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from checkpointing.format.manifest import MANIFEST
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Tombstone
from checkpointing.stores.contract import Missing, Store, Upload, abandoned_uploads, abort_uploads

_NUM_THREADS = 8
# Longer than any save's deadline.
_UPLOADS_TAKE_AT_MOST = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """Objects of one generation that no record keeps, and why they are of no use."""

    generation: str
    why: str
    objects: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """``spared`` are generations that look whole and whose commits a damaged log may have lost.

    ``uploads`` began so long ago that nobody goes on with them; how large they are no store tells.
    """

    remainders: tuple[Remainder, ...]
    uploads: tuple[Upload, ...]
    spared: tuple[str, ...]

    @property
    def num_objects(self) -> int:
        return sum(len(one.objects) for one in self.remainders)

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.remainders)


def find_leftovers(repository: Repository, *, now: datetime) -> Leftovers:
    """Changes nothing. Call it after ``refresh``."""
    over = repository.garbage()
    spared = [name for name in over if repository.view.num_lost and _looks_whole(over[name])]
    found = [(name, "attempt is over", over[name]) for name in sorted(over) if name not in spared]
    given_up = _given_up(repository, set(over))
    found += [(name, "given up", objects) for name, objects in sorted(given_up.items())]
    return Leftovers(
        remainders=tuple(_remainder(repository.store, *one) for one in found),
        uploads=tuple(_old_uploads(repository, now)),
        spared=tuple(spared),
    )


def sweep(repository: Repository, *, now: datetime) -> None:
    """Removes what earlier attempts left, without measuring it. Spares what a damaged log may have lost, and,
    however wrong ``now`` is, every save that may be going on.
    """
    for name, objects in repository.garbage().items():
        if not (repository.view.num_lost and _looks_whole(objects)):
            repository.delete_objects(name, objects)
    uploads = _old_uploads(repository, now)
    over = [upload for upload in uploads if not repository.is_of_present_term(upload.name)]
    abort_uploads(repository.store, over)


def remove(repository: Repository, leftovers: Leftovers) -> None:
    """Doing it again after it was interrupted is harmless."""
    for one in leftovers.remainders:
        repository.delete_objects(one.generation, one.objects)
    abort_uploads(repository.store, leftovers.uploads)


def _old_uploads(repository: Repository, now: datetime) -> Sequence[Upload]:
    before = now - _UPLOADS_TAKE_AT_MOST
    return abandoned_uploads(repository.store, f"runs/{repository.run}", before=before)


def _looks_whole(objects: Sequence[str]) -> bool:
    """The manifest is written last and deleted first."""
    return any(name.endswith(f"/{MANIFEST}") for name in objects)


def _given_up(repository: Repository, over: set[str]) -> dict[str, list[str]]:
    """Of the present attempt: what is not kept may be a save that goes on, unless the log says otherwise."""
    waiting = {name for name in repository.foreign() if not repository.view.generation(name)} - over
    if not waiting:
        return {}
    entries = (record.entry for record in repository.records())
    names = {name for entry in entries if isinstance(entry, Tombstone) for name in entry.names}
    found = {name: repository.objects_of(name) for name in waiting & names}
    return {name: objects for name, objects in found.items() if objects}


def _remainder(store: Store, generation: str, why: str, objects: Sequence[str]) -> Remainder:
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="size") as pool:
        num_bytes = sum(pool.map(partial(_size_of, store), objects))
    return Remainder(generation=generation, why=why, objects=tuple(sorted(objects)), num_bytes=num_bytes)


def _size_of(store: Store, name: str) -> int:
    """0 if it is gone by now."""
    try:
        return store.size(name)
    except Missing:
        return 0
