"""A run's generations in a store: commit, list, quarantine, retire and delete them.

The log decides which generations exist; objects without a commit count for nothing. Deletion runs in the
opposite order: the log gives a generation up, then the manifest is deleted, then the payload. A
``Repository`` may be used from several threads.

What a store refuses to delete costs only room: everything else goes on, see ``deletion``.

A whole generation that the log does not name is never deleted unless the user requests it. A start that
finds such generations resumes the newest if no record is known to be lost. Otherwise it is refused, see
``take_over``. With the store's key manifests are signed, and a start of a signed run takes no notice of
others: anybody who may write to the store may have planted them.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import RLock

from checkpointing.errors import NothingToResume
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import MANIFEST, Manifest, is_of_a_save, term_of
from checkpointing.format.pieces import Encoded
from checkpointing.generations.choice import Spoilt
from checkpointing.generations.deletion import DeletionQueue, delete_objects
from checkpointing.generations.manifests import (
    StoredManifest,
    encoded,
    has_our_signature,
    put_beside,
    read_for_all,
    read_manifest_back,
    read_whole,
)
from checkpointing.generations.retention import Retention, may_go
from checkpointing.generations.unnamed import (
    Surplus,
    find_whole,
    generation_of,
    is_ours_or_small,
    looks_whole,
    newer,
)
from checkpointing.log.codec import MOST_TERM, LogRecord
from checkpointing.log.folding import GivenUpNames
from checkpointing.log.history import Commit, Entry, Generation, LogView, Pin, Quarantine, Tombstone
from checkpointing.log.log import Log, LogFull
from checkpointing.log.signing import VARIABLE, Signer, StoreKeyError, store_key
from checkpointing.stores.contract import Buffer, Store, StoreError, check_name

_NOTE = re.compile(r"([0-9]{12})\.json")


class Repository:
    def __init__(
        self,
        store: Store,
        run: str,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.run = run
        self._signer = Signer(run, store_key())
        self._log = Log(store, run, clock=clock, signer=self._signer)
        self._folder = check_name(f"runs/{run}/gen")
        self._clock = clock
        self._lock = RLock()
        self._given_up: set[str] = set()
        self._discarded: set[str] = set()
        self._given_up_names = GivenUpNames(store, run, self._log, self._signer)
        self._deletions = DeletionQueue(ticks=ticks)
        self._surplus = Surplus()

    @property
    def view(self) -> LogView:
        """The state of the run as of the last ``refresh`` or append of this process."""
        return self._log.view

    def refresh(self) -> LogView:
        with self._lock:
            return self._log.read()

    def append(self, entry: Entry, *, term: int | None = None, hint_later: bool = False) -> LogView:
        """See ``Log.append``."""
        with self._lock:
            return self._log.append(entry, term=term, hint_later=hint_later)

    def lineage(self) -> str:
        """See ``Log.lineage``. The log must have a first record."""
        return self._log.lineage()

    def records(self) -> Iterator[LogRecord]:
        """See ``Log.records``."""
        return self._log.records()

    @property
    def surplus(self) -> Surplus:
        """What the last ``take_over`` found in addition to the log."""
        return self._surplus

    def take_over(
        self,
        owner: str,
        *,
        fresh: bool = False,
        what: str = "latest",
        spoilt: Callable[[], Spoilt] = tuple,
    ) -> int:
        """Begins an attempt, fences all earlier attempts and returns the new attempt's term.

        The term was never given before. It is above all terms of the log, its hint and the names in the
        store, so terms of lost records are not reused.

        Whole generations of this life are committed again if they are newer than all that the log names.
        ``spoilt`` excludes some of them. An attempt killed before its commit leaves one such generation.
        Several mean that records which verified them are lost; they are then also pinned, so no retention
        rule removes them.

        The start is refused with ``NothingToResume`` in two cases:

        - Such generations exist, and the hint or higher terms show that records are lost. What those
          records said against a generation is lost too.
        - The whole log is lost. Beginning at step 0 over good checkpoints would be the worst failure of
          all.

        With the store's key, ``StoreKeyError`` refuses a log that the key never signed: anybody may have
        planted it. ``fresh`` takes nothing from it, and a generation's name in ``what`` is the user's word.

        ``fresh`` begins at step 0 and keeps the old generations. Naming a generation in ``what`` decides
        the case: if the log lacks it, it alone is committed again and pinned.
        """
        with self._lock:
            # Names are read before the log: an active driver may add names meanwhile, and the log read
            # later already knows them.
            highest_term = self._highest_term()
            self._log.read()
            num_gone, was_signed = self._log.num_gone, self._log.is_signed()
            if not fresh and what == "latest":
                self._refuse_if_more_is_there(has_gone_back=num_gone > 0 or highest_term > self.view.term)
            is_named = term_of(what) is not None
            term = self._log.lease(owner, above=highest_term, takes_unsigned=is_named, fresh=fresh)
            # Searched for again, because an older writer could still commit until the lease.
            whole = [one for one in self.unnamed(what) if one.term < term]
            chosen: list[Generation] = []
            if whole and what != "latest":
                chosen = [one for one in whole if one.name == what]
            elif whole and not fresh:
                chosen = newer(self.view, self.signed_ones(whole) if was_signed else whole, spoilt())
            adopted = self._take_in(term, chosen, is_named=what != "latest")
            kept = tuple(one for one in whole if one not in adopted)
            self._surplus = Surplus(num_gone=num_gone, adopted=adopted, kept=kept)
            return term

    def lease(self, owner: str) -> int:
        """Begins an attempt above all terms that the log, its hint or a name tells of. With the store's key,
        raises ``StoreKeyError`` for a log that has records which nobody signed.
        """
        highest_term = self._highest_term()
        with self._lock:
            return self._log.lease(owner, above=highest_term, is_past_gone=True)

    def unnamed(self, what: str | None = None) -> list[Generation]:
        """Returns whole generations that the log neither names nor has given up, in the order of their
        saves.

        Those of the present attempt may be saves that are about to be committed. Call it after ``refresh``.
        Given ``what``, the generation that is named so is among them whoever saved it. Of the others, with
        the store's key, those that it did not sign are left out if their manifests are large.
        """

        def may_parse(name: str, manifest: bytes) -> bool:
            return what in (None, name) or is_ours_or_small(self._signer, name, manifest)

        view = self.view
        objects = {name: found for name, found in self._objects().items() if not view.generation(name)}
        whole = find_whole(self.store, self.run, objects, now_s=self._clock(), may_parse=may_parse)
        given_up = self.given_up() if whole else set()
        return [one for one in whole if one.name not in given_up]

    @property
    def is_signed(self) -> bool:
        """Says whether the log is signed with the key of this process. Call it after ``refresh``."""
        with self._lock:
            return self._log.is_signed()

    def refuse_as_origin(self, what: str) -> None:
        """Raises ``StoreKeyError`` if another run is to begin from ``what``, the log may be anybody's, and
        ``what`` does not name a generation, which is the user's word for it. Call it after ``refresh``.
        """
        with self._lock:
            if term_of(what) is not None or not self._log.is_anybodys():
                return
        place = f"{self.store.url}/runs/{self.run}"
        raise StoreKeyError(
            f"{place}/log: none of its records is signed with the key in {VARIABLE}, so whoever may write to "
            "that store can have made them; look at the checkpoint that you trust, and name it with "
            f"--resume {place}/gen/NAME (`longhaul checkpoints list` has the names)"
        )

    def is_only_of(self, owners: str) -> bool:
        """Says whether one whose name begins with ``owners`` began the log, and nobody else has taken the run
        over since. Call it after ``refresh``.
        """
        with self._lock:
            return all((one or "").startswith(owners) for one in (self._log.begun_by(), self.view.owner))

    def signed_ones(self, generations: Iterable[Generation], *, of_any_log: bool = False) -> list[Generation]:
        """Returns those whose manifest is signed with the key of this process, for this log."""
        with self._lock:
            log = None if of_any_log else self._log.log_id()
        return [one for one in generations if has_our_signature(self._signer, self.place(one.name), one, log)]

    def given_up(self) -> set[str]:
        """Returns the names that a record gives up, whose objects may be deleted.

        Reads the fold and the records behind it up to the newest that is known, see ``folding``.
        """
        return self._given_up_names.read()

    def stored_generations(self) -> list[str]:
        """Returns the names of all generations that have objects in the store."""
        return sorted(self._objects())

    def place(self, generation: str) -> GenerationPlace:
        return GenerationPlace(store=self.store, folder=self._folder_of(generation))

    def put_file(self, generation: str, file: str, data: Buffer) -> None:
        """Writes one file. Repeating it is harmless, because a generation's name is random and has one
        writer.
        """
        self.store.put(f"{self._folder_of(generation)}/{file}", data)

    def commit(self, manifest: Manifest | Encoded, *, term: int) -> Generation:
        """Makes the generation exist. All its files must already be in the store.

        Of a manifest in pieces, the root is written last: without it the rest counts for nothing.
        """
        cut = manifest.cut
        with self._lock:
            log = self._log.log_id()
        objects = encoded(manifest, log) if isinstance(manifest, Manifest) else manifest.of_log(log)
        data = self._signer.sign_manifest(cut.generation, objects.root)
        put_beside(self.store, self._folder_of(cut.generation), objects)
        self.put_file(cut.generation, MANIFEST, data)
        num_bytes = objects.num_bytes + objects.num_bytes_beside + len(data)
        generation = generation_of(cut, num_bytes, data, self._clock())
        # A record of what came of it follows. Were this one lost meanwhile, a start finds it whole.
        self.append(Commit(generation=generation), term=term, hint_later=True)
        return generation

    def manifest(self, generation: Generation, *, with_shards: bool = True) -> Manifest:
        """Returns all of the manifest; raises ``Corrupt`` if it is not the one that was committed.

        Without shards it only tells of the files, where it is in pieces; that costs less.
        """
        return read_whole(self.place(generation.name), generation, with_shards=with_shards)

    def read_manifest_back(self, generation: Generation, *, by_others: Collection[int]) -> None:
        """See ``manifests.read_manifest_back``."""
        read_manifest_back(self.place(generation.name), generation, by_others=by_others)

    def stored_manifest(self, generation: Generation) -> StoredManifest:
        """Returns what all ranks need of the manifest; raises ``Corrupt`` as ``manifest`` does."""
        return read_for_all(self.place(generation.name), generation)

    def quarantine(
        self, generation: str, reason: str, *, term: int | None = None, is_poison: bool = False
    ) -> None:
        self.append(Quarantine(name=generation, reason=reason, is_poison=is_poison), term=term)

    def retire(self, policy: Retention, *, term: int) -> tuple[str, ...]:
        """Gives up and deletes what ``policy`` does not keep, and returns the names that it deleted. Only the
        holder of the lease may call it.

        A deletion that the store refuses is no error: see ``not_deleted``.
        """

        def give_up(view: LogView) -> Tombstone | None:
            names = may_go(view, policy)
            # Names are noted before the append: if its answer is lost, the next call deletes them.
            self._given_up.update(names)
            return Tombstone(names=names) if names else None

        with self._lock:
            self._log.decide(give_up, term=term)
        self._given_up_names.leave()
        self._deletions.add(sorted(self._given_up))
        self._given_up.clear()
        return self.delete_waiting()

    def discard(self, generations: Iterable[str], *, term: int) -> tuple[str, ...]:
        """Gives up and deletes generations that the log does not keep, and returns those that are gone. Only
        the holder of the lease may call it.

        The log gives them up first: a tool that has read their bytes meanwhile must not take them into it.
        A deletion that the store refuses is no error: see ``not_deleted``.
        """
        names = set(generations)
        # What an earlier process gave up is given up once more: to ask the log may read every record.
        left = sorted(names - self._discarded)

        def give_up(view: LogView) -> Tombstone | None:
            unkept = tuple(name for name in left if not view.generation(name))
            return Tombstone(names=unkept) if unkept else None

        with self._lock:
            self._log.decide(give_up, term=term)
            self._discarded.update(name for name in left if not self.view.generation(name))
        self._deletions.add(sorted(names))
        return self.delete_waiting()

    def delete_waiting(self) -> tuple[str, ...]:
        """Deletes what waits to be deleted and is due."""
        view = self.view
        return self._deletions.work(
            lambda name: self.delete_objects(name, self.objects_of(name)), view.generation
        )

    @property
    def not_deleted(self) -> Mapping[str, StoreError]:
        """The generations that the store refused to delete. They are tried again after an hour."""
        return self._deletions.refused

    def objects_of(self, generation: str) -> list[str]:
        """Returns the objects that a save has written there. Other files are not ours to delete."""
        return [name for name in self.store.list(self._folder_of(generation)) if is_of_a_save(name)]

    def garbage(self) -> dict[str, list[str]]:
        """Returns objects of generations that the log does not name, by generation. Call it after
        ``refresh``.

        Generations of the present term are left out, because they may be a save in progress. Older ones can
        no longer be committed by their savers. Those that look whole must not be deleted without a request,
        see ``expendable``.
        """
        view = self.view
        found = {
            name: [one for one in objects if is_of_a_save(one)]
            for name, objects in self._objects().items()
            if not view.generation(name) and (term := term_of(name)) is not None and term < view.term
        }
        return {name: objects for name, objects in found.items() if objects}

    def expendable(self) -> dict[str, list[str]]:
        """Returns the garbage that needs no request to be deleted: incomplete generations, and those that
        the log gave up.
        """
        garbage = self.garbage()
        whole = {name for name, objects in garbage.items() if looks_whole(objects)}
        spared = whole - self.given_up() if whole else whole
        return {name: objects for name, objects in garbage.items() if name not in spared}

    def is_of_present_term(self, name: str) -> bool:
        """Says whether an object or upload belongs to a save that may be in progress."""
        return name.startswith(f"{self._folder}/") and term_of(self._generation_of(name)) == self.view.term

    def delete_objects(self, generation: str, names: Iterable[str]) -> None:
        """Deletes these objects of a generation that the log does not keep."""
        if self.view.generation(generation):
            raise ValueError(f"{generation} is kept")
        delete_objects(self.store, names)

    def delete_unnamed(self, objects: Mapping[str, Iterable[str]]) -> Mapping[str, StoreError]:
        """Deletes ``objects`` (by generation) of generations that the log does not name. Returns those that
        the store refused to delete.

        The log gives them up first, so no start commits one of them again. A generation that was committed
        meanwhile stays.
        """

        def give_up(view: LogView) -> Tombstone | None:
            names = tuple(name for name in objects if not view.generation(name))
            return Tombstone(names=names) if names else None

        with self._lock:
            view = self._log.decide(give_up)
        deletions = DeletionQueue()
        deletions.add(objects)
        gone = deletions.work(lambda name: self.delete_objects(name, objects[name]), view.generation)
        left = [name for name in objects if name not in gone and not view.generation(name)]
        refused = deletions.refused
        return {name: refused.get(name, StoreError("not tried, as the store is away")) for name in left}

    def _refuse_if_more_is_there(self, *, has_gone_back: bool) -> None:
        place = f"{self.store.url}: runs/{self.run}"
        found = self._found_beside_the_log() if self._has_lost_its_log() else []
        if found:
            # Another driver may have begun the log, and saved, since it was looked at.
            self._log.read()
        if found and self._has_lost_its_log():
            raise NothingToResume(
                f"{place} has {len(found)} generations such as {found[-1]}, but its log is gone or damaged "
                "and names none of them; restore the log, make one from what is there with `longhaul "
                "checkpoints fsck --rebuild`, name the one to go on from with --resume NAME, "
                "give the run another name, or begin anew beside them with --fresh"
            )
        if has_gone_back and (more := newer(self.view, self._believed_unnamed())):
            raise NothingToResume(
                f"{place}: the log ends at record {self._log.number}, and newer records are gone: it does "
                f"not name {', '.join(one.name for one in more)}, which are whole and newer than all that it "
                "names; restore the log, take them back into it with `longhaul checkpoints adopt`, name the "
                "one to go on from with --resume NAME, or begin anew beside them with --fresh"
            )

    def _take_in(self, term: int, chosen: Sequence[Generation], *, is_named: bool) -> tuple[Generation, ...]:
        # Where the log is full, one that is named can't be resumed. Any other waits until a save makes room.
        passed_over = () if is_named else (LogFull,)
        adopted: list[Generation] = []
        for generation in chosen:
            with suppress(*passed_over):
                if self.commit_again(generation, term):
                    adopted.append(generation)
        for one in adopted if len(chosen) > 1 or is_named else ():
            self._log.append(Pin(name=one.name), term=term)
        return tuple(adopted)

    def commit_again(self, generation: Generation, term: int | None = None) -> bool:
        """Commits the generation unless the log has given it up meanwhile; returns whether the log names it
        now.
        """

        def decide(view: LogView) -> Commit | None:
            return None if generation.name in self.given_up() else Commit(generation=generation)

        return self._log.decide(decide, term=term).generation(generation.name) is not None

    def _found_beside_the_log(self) -> list[str]:
        if self._log.is_signed():
            return [one.name for one in self._believed_unnamed()]
        return self.stored_generations()

    def _believed_unnamed(self) -> list[Generation]:
        found = self.unnamed("latest")
        return self.signed_ones(found) if self._log.is_signed() else found

    def _highest_term(self) -> int:
        """Returns the highest term in the names of generations and of the notes that drivers leave of
        attempts. Terms that no run reaches were planted, and would use the terms up.
        """
        notes = f"runs/{self.run}/attempts"
        newest = f"{notes}/{self.view.term:012d}.json"
        found = [_NOTE.fullmatch(name.rpartition("/")[2]) for name in self.store.list(notes, after=newest)]
        terms = [term_of(name) or 0 for name in self._objects()]
        terms += [int(one[1]) for one in found if one]
        return max((term for term in terms if term < MOST_TERM), default=0)

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
    """Returns the repository, refreshed; raises ``NothingToResume`` if no attempt of this run ever began."""
    repository = Repository(store, run)
    if repository.refresh().term == 0:
        raise no_such_run(store, run)
    return repository


def no_such_run(store: Store, run: str) -> NothingToResume:
    return NothingToResume(f"{store.url}: there is no run {run!r}; expected the name of one below runs/")


def generation_name(step: int, term: int, save_id: str) -> str:
    """Returns the name of a generation, in the form that ``manifest.term_of`` parses."""
    return f"{step:012d}-t{term}-{save_id}"
