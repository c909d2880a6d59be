"""The local tier: each rank keeps the files of its newest few saves on its node's disk, to resume quickly.

Unreadable is not unneeded: what can't be read just now is kept and told. A host frees whatever is older than
what the store has verified, whichever rank wrote it, since ranks move between hosts.

A generation on disk needs no commit. Each file's part is written next to it, after it, so a rank's share is
whole or absent. Whether the shares of all ranks exist is found out when a run resumes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from checkpointing.errors import Corrupt
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import Cut, FilePart, decode_part, encode_part, is_of_a_save, part_name
from checkpointing.log.history import Generation
from checkpointing.stores.contract import Full, Missing, StoreError, check_name
from checkpointing.stores.local import LocalStore


def local_tier_name(run: str, lineage: str) -> str:
    """Returns the run's folder name on a disk. It includes the log's lineage, so another log's run of the
    same name finds and deletes nothing of this run.
    """
    return f"{run}@{lineage}"


class LocalTier:
    """One run's folder on this node. A leading ``~`` means this node's home.

    ``num_kept`` counts generations of one rank, and must be at least 2.
    """

    def __init__(self, folder: Path, run: str, num_kept: int) -> None:
        self._store = LocalStore(folder.expanduser())
        self._folder = check_name(f"runs/{run}/gen")
        self._num_kept = num_kept

    def keep(self, cut: Cut, part: FilePart, data: memoryview) -> str | None:
        """Writes a share, which is durable on return, then deletes this rank's oldest shares beyond
        ``num_kept``. Returns what is wrong although the share is there.

        On a full disk, all but the newest earlier share are deleted first and the write is tried again.
        """
        try:
            self._put(cut, part, data)
        except Full:
            self._keep_only(1, part.rank)
            self._put(cut, part, data)
        try:
            unreadable = self._keep_only(self._num_kept, part.rank)
        except StoreError as error:
            return f"older saves could not be deleted: {error}"
        return unreadable_text(unreadable)

    def inventory(self) -> list[tuple[Cut, FilePart]]:
        """Returns all shares that are whole judging by names; their bytes are checked when they are read.

        A part that cannot be read, or lies where another share belongs, is left out.
        """
        return self._look().shares

    def place(self, generation: str) -> GenerationPlace:
        return GenerationPlace(store=self._store, folder=f"{self._folder}/{generation}")

    def tidy(self) -> None:
        """Deletes garbage of killed saves, recognised by the names that saves use. Call it while no rank
        saves here.

        What cannot be read just now may be good: a part that is unreadable stays, and its file with it.
        """
        look = self._look()
        for name in look.names - look.whole - look.spared:
            if is_of_a_save(name):
                self._store.delete(name)
        left = self._store.abandoned_uploads(self._folder, before=datetime.now(UTC))
        self._store.abort_uploads(left)

    def free_before(self, good: Generation | None) -> None:
        """Deletes shares that are older than ``good``, which the store has verified, whichever rank wrote
        them. Those of the newest ``num_kept`` generations here stay.
        """
        if good is None:
            return
        shares = self._look().shares
        kept = sorted({(cut.term, cut.number) for cut, _ in shares})[-self._num_kept :]
        for cut, part in _oldest_first(shares):
            place = (cut.term, cut.number)
            if place < (good.term, good.number) and place not in kept:
                self._delete(cut, part)

    def _look(self) -> "_Look":
        names = frozenset(self._store.list(self._folder))
        look = _Look(names=names)
        for name in sorted(name for name in names if name.endswith(".json")):
            try:
                cut, part = decode_part(self._store.get(name))
            except (Corrupt, Missing):
                continue
            except StoreError as error:
                look.unreadable[name] = error
                continue
            file, its_part = self._names(cut, part)
            if name == its_part and file in names:
                look.shares.append((cut, part))
                look.whole.update((file, its_part))
        return look

    def _put(self, cut: Cut, part: FilePart, data: memoryview) -> None:
        file, its_part = self._names(cut, part)
        self._store.put(file, data)
        self._store.put(its_part, encode_part(cut, part))

    def _keep_only(self, num_kept: int, rank: int) -> Mapping[str, StoreError]:
        """Returns the parts that could not be read, and so were kept."""
        look = self._look()
        mine = [(cut, part) for cut, part in look.shares if part.rank == rank]
        for cut, part in _oldest_first(mine)[:-num_kept]:
            self._delete(cut, part)
        return look.unreadable

    def _delete(self, cut: Cut, part: FilePart) -> None:
        for name in reversed(self._names(cut, part)):
            self._store.delete(name)

    def _names(self, cut: Cut, part: FilePart) -> tuple[str, str]:
        """Returns the file, and the part that makes the file count."""
        folder = f"{self._folder}/{cut.generation}"
        return f"{folder}/{part.file}", f"{folder}/{part_name(part.rank)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What lies in a folder: all names, whole shares with the names of their objects, and the parts that
    could not be read just now.
    """

    names: frozenset[str]
    shares: list[tuple[Cut, FilePart]] = field(default_factory=list)
    whole: set[str] = field(default_factory=set)
    unreadable: dict[str, StoreError] = field(default_factory=dict)

    @property
    def spared(self) -> set[str]:
        """The parts that could not be read, and the files that they may stand for."""
        files = {f"{name.removesuffix('.json')}.safetensors" for name in self.unreadable}
        return files | self.unreadable.keys()


def unreadable_text(unreadable: Mapping[str, StoreError]) -> str | None:
    if not unreadable:
        return None
    name, error = next(iter(unreadable.items()))
    which = name if len(unreadable) == 1 else f"{len(unreadable)} parts such as {name}"
    return f"{which} can't be read and is kept: {error}"


def _oldest_first(found: Sequence[tuple[Cut, FilePart]]) -> list[tuple[Cut, FilePart]]:
    return sorted(found, key=lambda share: (share[0].term, share[0].number))
