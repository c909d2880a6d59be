"""A run's generations in a store: commit, choose, quarantine, collect garbage.

The log decides what is; objects without a commit are nothing. Deletion goes the other way round: given up
in the log first, then the manifest goes, then the payload. Safe to use from several threads.
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from threading import RLock

from checkpointing.errors import Corrupt, NothingToResume
from checkpointing.format.loading import Place
from checkpointing.format.manifest import (
    MANIFEST,
    Cut,
    Manifest,
    decode_manifest,
    encode_manifest,
    is_of_a_save,
    term_of,
)
from checkpointing.generations.retention import Retention, may_go
from checkpointing.log.codec import Record
from checkpointing.log.history import Commit, Entry, Fresh, Generation, Quarantine, Tombstone, View
from checkpointing.log.log import Log
from checkpointing.stores.contract import Buffer, Missing, Store, check_name


class Repository:
    def __init__(self, store: Store, run: str, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.run = run
        self._log = Log(store, run, clock=clock)
        self._folder = check_name(f"runs/{run}/gen")
        self._clock = clock
        self._lock = RLock()
        self._given_up: dict[str, None] = {}

    @property
    def view(self) -> View:
        """As of the last ``refresh`` or append of this process."""
        return self._log.view

    def refresh(self) -> View:
        with self._lock:
            return self._log.read()

    def append(self, entry: Entry, *, term: int | None = None) -> View:
        with self._lock:
            return self._log.append(entry, term=term)

    def lineage(self) -> str:
        """See ``Log.lineage``; the log must have begun."""
        return self._log.lineage()

    def records(self) -> list[Record]:
        return self._log.records()

    def take_over(self, owner: str, *, fresh: bool = False) -> int:
        """Begins an attempt and fences those before it; its term.

        A log that is gone while generations are still there is an error, not a new run: beginning at step 0
        over good checkpoints would be the worst of all failures.
        """
        with self._lock:
            self._log.read()
            if self._has_lost_its_log() and not fresh and (found := self.foreign()):
                raise NothingToResume(
                    f"{self.store.url}: runs/{self.run} has {len(found)} generations such as {found[-1]}, "
                    "but its log is gone or damaged and names none of them; restore the log, give the run "
                    "another name, or begin anew with --fresh"
                )
            term = self._log.lease(owner)
            if fresh and self._log.number > 1:
                self._log.append(Fresh(), term=term)
            return term

    def foreign(self) -> list[str]:
        """Names of generations of which there are objects."""
        return sorted(self._objects())

    def place(self, generation: str) -> Place:
        return Place(store=self.store, folder=self._folder_of(generation))

    def put_file(self, generation: str, file: str, data: Buffer) -> None:
        """Doing it again is harmless: a generation's name is drawn at random and has one writer."""
        self.store.put(f"{self._folder_of(generation)}/{file}", data)

    def commit(self, manifest: Manifest, *, term: int) -> Generation:
        """From here on the generation exists. All its files must be in the store."""
        cut, data = manifest.cut, encode_manifest(manifest)
        self.put_file(cut.generation, MANIFEST, data)
        generation = _generation(cut, manifest.num_bytes + len(data), data, self._clock())
        self.append(Commit(generation=generation), term=term)
        return generation

    def manifest(self, generation: Generation) -> Manifest:
        """Raises ``Corrupt`` if it is not the one that was committed."""
        name = f"{self._folder_of(generation.name)}/{MANIFEST}"
        try:
            data = self.store.get(name)
        except Missing as error:
            raise Corrupt(f"{name} is gone") from error
        if _sha256(data) != generation.manifest_digest:
            raise Corrupt(f"{name} is not the one that was committed")
        return decode_manifest(data)

    def quarantine(
        self, generation: str, reason: str, *, term: int | None = None, is_poison: bool = False
    ) -> None:
        self.append(Quarantine(name=generation, reason=reason, is_poison=is_poison), term=term)

    def retire(self, policy: Retention, *, term: int) -> tuple[str, ...]:
        """Gives up what ``policy`` doesn't keep and deletes it; only the holder of the lease may."""

        def give_up(view: View) -> Tombstone | None:
            names = may_go(view, policy)
            # Before it is appended: if the answer is lost, or deleting fails, the next call deletes them.
            self._given_up.update(dict.fromkeys(names))
            return Tombstone(names=names) if names else None

        with self._lock:
            view = self._log.decide(give_up, term=term)
        gone = tuple(name for name in self._given_up if not view.generation(name))
        for name in gone:
            self.discard(name)
        self._given_up.clear()
        return gone

    def discard(self, generation: str) -> None:
        """Deletes what a save put there as a generation that the log doesn't keep."""
        self.delete_objects(generation, self.objects_of(generation))

    def objects_of(self, generation: str) -> list[str]:
        """What a save has put there; what somebody else did is not for us to delete."""
        return [name for name in self.store.list(self._folder_of(generation)) if is_of_a_save(name)]

    def garbage(self) -> dict[str, list[str]]:
        """Objects that crashed saves and deletions left, by generation. Call it after ``refresh``.

        Those of the present term may be a save that is going on; earlier ones can't be committed any more.
        """
        view = self.view
        found = {
            name: [one for one in objects if is_of_a_save(one)]
            for name, objects in self._objects().items()
            if not view.generation(name) and (term := term_of(name)) is not None and term < view.term
        }
        return {name: objects for name, objects in found.items() if objects}

    def is_of_present_term(self, name: str) -> bool:
        """Whether an object or upload belongs to a save that may be going on."""
        return name.startswith(f"{self._folder}/") and term_of(self._generation_of(name)) == self.view.term

    def delete_objects(self, generation: str, names: Iterable[str]) -> None:
        """The manifest first: what is half deleted must not look whole."""
        if self.view.generation(generation):
            raise ValueError(f"{generation} is kept")
        for name in sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")):
            self.store.delete(name)

    def _has_lost_its_log(self) -> bool:
        return not self.view.generations and (self._log.number == 0 or self.view.num_lost > 0)

    def _objects(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.store.list(self._folder):
            found.setdefault(self._generation_of(name), []).append(name)
        return found

    def _generation_of(self, name: str) -> str:
        return name.removeprefix(f"{self._folder}/").partition("/")[0]

    def _folder_of(self, generation: str) -> str:
        return check_name(f"{self._folder}/{generation}")


def existing_run(store: Store, run: str) -> Repository:
    """As of now; raises ``NothingToResume`` where no attempt of such a run has ever begun."""
    repository = Repository(store, run)
    if repository.refresh().term == 0:
        raise no_such_run(store, run)
    return repository


def no_such_run(store: Store, run: str) -> NothingToResume:
    return NothingToResume(f"{store.url}: there is no run {run!r}; expected the name of one below runs/")


def generation_name(step: int, term: int, save_id: str) -> str:
    """``manifest.term_of`` knows it by this form."""
    return f"{step:012d}-t{term}-{save_id}"


def _generation(cut: Cut, num_bytes: int, manifest: bytes, now: float) -> Generation:
    return Generation(
        name=cut.generation,
        step=cut.step,
        term=cut.term,
        number=cut.number,
        committed_s=now,
        num_bytes=num_bytes,
        manifest_digest=_sha256(manifest),
        epoch_end=cut.epoch_end,
        metrics=cut.metrics,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
