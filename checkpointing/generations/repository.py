"""A run's generations in a store: commit, choose, quarantine, collect garbage.

The log decides what is; objects without a commit are nothing. Deletion goes the other way round: given up
in the log first, then the manifest goes, then the payload. Safe to use from several threads.

What is good is never deleted because it is not known: a whole generation that the log does not name stays
until somebody says otherwise. A start that finds more than its log knows goes on from the newest of it where
no record is known to be gone, and is refused elsewhere, see ``take_over``.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from threading import RLock

from checkpointing.errors import Corrupt, NothingToResume
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    encode_manifest,
    is_of_a_save,
    term_of,
)
from checkpointing.generations.choice import Spoilt
from checkpointing.generations.retention import Retention, may_go
from checkpointing.generations.unnamed import Surplus, find_whole, generation_of, looks_whole, newer
from checkpointing.log.codec import LogRecord
from checkpointing.log.history import Commit, Entry, Fresh, Generation, LogView, Pin, Quarantine, Tombstone
from checkpointing.log.log import Log
from checkpointing.stores.contract import Buffer, Missing, Store, check_name

_NOTE = re.compile(r"([0-9]{12})\.json")


class Repository:
    def __init__(self, store: Store, run: str, *, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.run = run
        self._log = Log(store, run, clock=clock)
        self._folder = check_name(f"runs/{run}/gen")
        self._clock = clock
        self._lock = RLock()
        self._given_up: dict[str, None] = {}
        self._surplus = Surplus()

    @property
    def view(self) -> LogView:
        """As of the last ``refresh`` or append of this process."""
        return self._log.view

    def refresh(self) -> LogView:
        with self._lock:
            return self._log.read()

    def append(self, entry: Entry, *, term: int | None = None) -> LogView:
        with self._lock:
            return self._log.append(entry, term=term)

    def lineage(self) -> str:
        """See ``Log.lineage``; the log must have begun."""
        return self._log.lineage()

    def records(self) -> list[LogRecord]:
        return self._log.records()

    @property
    def surplus(self) -> Surplus:
        """What the last ``take_over`` found beside what the log tells."""
        return self._surplus

    def take_over(
        self,
        owner: str,
        *,
        fresh: bool = False,
        what: str = "latest",
        spoilt: Callable[[], Spoilt] = tuple,
    ) -> int:
        """Begins an attempt and fences those before it; its term, which was never given before: neither by
        the log, nor by what its hint and the names in the store tell of records that are gone.

        Whole generations of this life that the log does not name are committed again if they are newer than
        all that it names, but for those of ``spoilt``. One is what an attempt leaves that is killed before
        its commit; several were verified by records that are gone, so they are pinned too, and no rule
        takes them. Where the hint or higher terms show that records are gone, what these said against a
        generation is gone too, and this start is refused. So is one whose log is gone: beginning at step 0
        over good checkpoints would be the worst of all failures. ``fresh`` begins beside what there is. To
        name one in ``what`` decides it: it alone is committed again and pinned, if the log lacks it.
        """
        with self._lock:
            # Before the log is read: a driver that is at work leaves names of which the log knows already.
            highest_term = self._highest_term()
            self._log.read()
            num_gone = self._log.num_gone
            if not fresh and what == "latest":
                self._refuse_if_more_is_there(has_gone_back=num_gone > 0 or highest_term > self.view.term)
            term = self._log.lease(owner, above=highest_term)
            if fresh and self._log.number > 1:
                self._log.append(Fresh(), term=term)
            self._surplus = self._take_in(term, num_gone, what, fresh=fresh, spoilt=spoilt)
            return term

    def unnamed(self) -> list[Generation]:
        """Whole generations that the log neither names nor has given up, in the order of their saves; those
        of the present attempt may be saves that are about to be committed. Call it after ``refresh``.
        """
        view = self.view
        objects = {name: found for name, found in self._objects().items() if not view.generation(name)}
        whole = find_whole(self.store, self.run, objects, now_s=self._clock())
        given_up = self.given_up() if whole else set()
        return [one for one in whole if one.name not in given_up]

    def given_up(self) -> set[str]:
        """Names that a record gives up, whose objects may go. Reads the whole log."""
        entries = (record.entry for record in self.records())
        return {name for entry in entries if isinstance(entry, Tombstone) for name in entry.names}

    def foreign(self) -> list[str]:
        """Names of generations of which there are objects."""
        return sorted(self._objects())

    def place(self, generation: str) -> GenerationPlace:
        return GenerationPlace(store=self.store, folder=self._folder_of(generation))

    def put_file(self, generation: str, file: str, data: Buffer) -> None:
        """Doing it again is harmless: a generation's name is drawn at random and has one writer."""
        self.store.put(f"{self._folder_of(generation)}/{file}", data)

    def commit(self, manifest: Manifest, *, term: int) -> Generation:
        """From here on the generation exists. All its files must be in the store."""
        cut, data = manifest.cut, encode_manifest(manifest)
        self.put_file(cut.generation, MANIFEST, data)
        generation = generation_of(cut, manifest.num_bytes + len(data), data, self._clock())
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

        def give_up(view: LogView) -> Tombstone | None:
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
        """Objects of generations that the log does not name, by generation. Call it after ``refresh``.

        Those of the present term may be a save that is going on; earlier ones can't be committed any more by
        who saved them. What looks whole among them is not to be deleted unasked, see ``expendable``.
        """
        view = self.view
        found = {
            name: [one for one in objects if is_of_a_save(one)]
            for name, objects in self._objects().items()
            if not view.generation(name) and (term := term_of(name)) is not None and term < view.term
        }
        return {name: objects for name, objects in found.items() if objects}

    def expendable(self) -> dict[str, list[str]]:
        """Of the garbage what crashed saves and deletions left: halves, and what the log has given up."""
        garbage = self.garbage()
        whole = {name for name, objects in garbage.items() if looks_whole(objects)}
        spared = whole - self.given_up() if whole else whole
        return {name: objects for name, objects in garbage.items() if name not in spared}

    def is_of_present_term(self, name: str) -> bool:
        """Whether an object or upload belongs to a save that may be going on."""
        return name.startswith(f"{self._folder}/") and term_of(self._generation_of(name)) == self.view.term

    def delete_objects(self, generation: str, names: Iterable[str]) -> None:
        """The manifest first: what is half deleted must not look whole."""
        if self.view.generation(generation):
            raise ValueError(f"{generation} is kept")
        for name in sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")):
            self.store.delete(name)

    def delete_unnamed(self, objects: Mapping[str, Iterable[str]]) -> None:
        """Deletes ``objects``, by generation, of those that the log does not name. They are given up in the
        log first, so that no start commits one of them again; what was committed meanwhile stays.
        """

        def give_up(view: LogView) -> Tombstone | None:
            names = tuple(name for name in objects if not view.generation(name))
            return Tombstone(names=names) if names else None

        with self._lock:
            view = self._log.decide(give_up)
        for name in objects:
            if not view.generation(name):
                self.delete_objects(name, objects[name])

    def _refuse_if_more_is_there(self, *, has_gone_back: bool) -> None:
        place = f"{self.store.url}: runs/{self.run}"
        if self._has_lost_its_log() and (found := self.foreign()):
            raise NothingToResume(
                f"{place} has {len(found)} generations such as {found[-1]}, but its log is gone or damaged "
                "and names none of them; restore the log, name the one to go on from with --resume NAME, "
                "give the run another name, or begin anew beside them with --fresh"
            )
        if has_gone_back and (more := newer(self.view, self.unnamed())):
            raise NothingToResume(
                f"{place}: the log ends at record {self._log.number}, and newer records are gone: it does "
                f"not name {', '.join(one.name for one in more)}, which are whole and newer than all that it "
                "names; restore the log, name the one to go on from with --resume NAME, or begin anew beside "
                "them with --fresh"
            )

    def _take_in(
        self, term: int, num_gone: int, what: str, *, fresh: bool, spoilt: Callable[[], Spoilt]
    ) -> Surplus:
        """Looks again: whoever was about to commit could do so until the lease."""
        whole = [one for one in self.unnamed() if one.term < term]
        adopted: list[Generation] = []
        if whole and what != "latest":
            adopted = [one for one in whole if one.name == what]
        elif whole and not fresh:
            adopted = newer(self.view, whole, spoilt())
        is_pinned = len(adopted) > 1 or what != "latest"
        adopted = [one for one in adopted if self._commit_again(one, term)]
        for one in adopted if is_pinned else ():
            self._log.append(Pin(name=one.name), term=term)
        kept = tuple(one for one in whole if one not in adopted)
        return Surplus(num_gone=num_gone, adopted=tuple(adopted), kept=kept)

    def _commit_again(self, generation: Generation, term: int) -> bool:
        """Unless somebody has given it up meanwhile."""

        def decide(view: LogView) -> Commit | None:
            return None if generation.name in self.given_up() else Commit(generation=generation)

        return self._log.decide(decide, term=term).generation(generation.name) is not None

    def _highest_term(self) -> int:
        """Of those that names tell of: generations', and the notes that drivers leave of attempts."""
        notes = f"runs/{self.run}/attempts"
        newest = f"{notes}/{self.view.term:012d}.json"
        found = [_NOTE.fullmatch(name.rpartition("/")[2]) for name in self.store.list(notes, after=newest)]
        terms = [term_of(name) or 0 for name in self._objects()]
        return max([*terms, *(int(one[1]) for one in found if one)], default=0)

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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
