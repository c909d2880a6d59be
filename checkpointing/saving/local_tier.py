"""The local tier: each rank keeps the files of its newest few saves on its node's disk, to resume quickly.

Unreadable is not unneeded: what can't be read just now is kept and told. A host frees whatever is older than
what the store has verified, whichever rank wrote it, since ranks move between hosts. A budget in bytes is
kept to before a share is written, so that the disk never gets full.

A generation on disk needs no commit. Each file's part is written next to it, after it, so a rank's share is
whole or absent. Whether the shares of all ranks exist is found out when a run resumes.

So whoever can write here can decide what is resumed. The run's folder is closed to other users, and what
belongs to somebody else is neither read nor written to (see ``own_store``).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from shutil import disk_usage

from checkpointing.errors import Corrupt
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import (
    MOST_MANIFEST_BYTES,
    Cut,
    FilePart,
    decode_part,
    encode_part,
    is_of_a_save,
    part_name,
)
from checkpointing.log.history import Generation
from checkpointing.saving.budget import Budget, Share, oldest_first, to_free
from checkpointing.saving.own_store import OwnStore
from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Full, Missing, StoreError, check_name


def local_tier_name(run: str, lineage: str) -> str:
    """Returns the run's folder name on a disk. It includes the log's lineage, so another log's run of the
    same name finds and deletes nothing of this run.
    """
    return f"{run}@{lineage}"


class LocalTier:
    """One run's folder on this node. A leading ``~`` means this node's home.

    ``num_kept`` counts generations of one rank, and must be at least 2. ``verified`` returns the newest
    generation that the store has verified, without asking the store. ``within`` is a folder of ours in
    ``folder``, which is closed instead of the run's.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        num_kept: int,
        budget: Budget | None = None,
        *,
        verified: Callable[[], Generation | None] = lambda: None,
        free_bytes: Callable[[Path], int | None] | None = None,
        within: str = "",
    ) -> None:
        place = check_name(f"{within}/runs/{run}" if within else f"runs/{run}")
        self._store = OwnStore(folder.expanduser(), closed=within or place)
        self._folder = check_name(f"{place}/gen")
        self._num_kept = num_kept
        self._budget = budget or Budget()
        self._verified = verified
        self._free_bytes = free_bytes or _free_bytes

    def keep(self, cut: Cut, part: FilePart, data: memoryview) -> str | None:
        """Writes a share, which is durable on return, then deletes this rank's oldest shares beyond
        ``num_kept``. Returns what is wrong although the share is there.

        Older shares are deleted first if the budget asks for it. Raises ``Full`` and deletes nothing if that
        is not enough. On a full disk, all but the newest earlier share are deleted and the write is tried
        again.
        """
        set_aside = self._store.set_aside_what_was_open()
        look = self._look()
        fewer = self._make_room(look, cut, part)
        try:
            self._put(cut, part, data)
        except Full:
            self._keep_only(look, 1, part.rank)
            self._put(cut, part, data)
        look.shares.append((cut, part))
        try:
            self._keep_only(look, self._num_kept, part.rank)
        except StoreError as error:
            return f"older saves could not be deleted: {error}"
        return set_aside or unreadable_text(look.unreadable) or fewer

    def inventory(self) -> list[tuple[Cut, FilePart]]:
        """Returns all shares that are whole judging by names; their bytes are checked when they are read.

        A part that cannot be read, or lies where another share belongs, is left out.
        """
        return self._look().shares

    def place(self, generation: str) -> GenerationPlace:
        return GenerationPlace(store=self._store, folder=f"{self._folder}/{generation}")

    def open_share(self, cut: Cut, part: FilePart) -> FileIO:
        """Opens a share's file for reading; the caller closes it."""
        return self._store.open_file(self._names(cut, part)[0])

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
        for cut, part in oldest_first(shares):
            place = (cut.term, cut.number)
            if place < (good.term, good.number) and place not in kept:
                self._delete(cut, part)

    def _make_room(self, look: "_Look", cut: Cut, part: FilePart) -> str | None:
        """Keeps to the budget, also while the node's other ranks write their shares of ``cut``.

        Returns a text if fewer saves than ``num_kept`` will be kept.
        """
        others = [share for share in look.shares if share[0].generation != cut.generation]
        unreadable = self._unreadable_bytes(look)
        needed = part.num_bytes * self._budget.num_ranks
        allowed = self._budget.allowed(_bytes(look.shares) + unreadable, self._free_bytes(self._store.root))
        if allowed is None:
            return None
        freed = to_free(others, _bytes(others) + unreadable + needed - allowed, good=self._verified())
        if freed is None:
            raise Full(self._no_room_text(needed, allowed))
        for share in freed:
            self._delete(*share)
            look.shares.remove(share)
        own = [share for share in others if share[1].rank == part.rank]
        num_left = sum(share not in freed for share in own)
        is_fewer = num_left < min(len(own), self._num_kept - 1)
        return self._fewer_text(num_left + 1, allowed) if is_fewer else None

    def _unreadable_bytes(self, look: "_Look") -> int:
        num_bytes = 0
        for name in look.spared & look.names:
            with suppress(StoreError):
                num_bytes += self._store.size(name)
        return num_bytes

    def _no_room_text(self, needed: int, allowed: int) -> str:
        return (
            f"store: {self._store.root}: no room for a save of {_gigabytes(needed)} on this node: "
            f"checkpoint.local.max_bytes and the disk allow {_gigabytes(allowed)} together with the save "
            "before it; make room, or raise the one that is too small"
        )

    def _fewer_text(self, num_left: int, allowed: int) -> str:
        return (
            f"{num_left} of {self._num_kept} saves stay in {self._store.root}: checkpoint.local.max_bytes "
            f"and the disk allow {_gigabytes(allowed)}"
        )

    def _look(self) -> "_Look":
        names = frozenset(self._store.list(self._folder))
        look = _Look(names=names)
        for name in sorted(name for name in names if name.endswith(".json")):
            try:
                cut, part = decode_part(get_bounded(self._store, name, most_bytes=MOST_MANIFEST_BYTES))
            except (Corrupt, Missing, TooLarge):
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

    def _keep_only(self, look: "_Look", num_kept: int, rank: int) -> None:
        mine = [(cut, part) for cut, part in look.shares if part.rank == rank]
        for cut, part in oldest_first(mine)[:-num_kept]:
            self._delete(cut, part)

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
    shares: list[Share] = field(default_factory=list)
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


def _bytes(shares: Sequence[Share]) -> int:
    return sum(part.num_bytes for _, part in shares)


def _free_bytes(folder: Path) -> int | None:
    """Returns what the disk has free for us; None if nobody knows."""
    try:
        while not folder.exists():
            folder = folder.parent
        return disk_usage(folder).free
    except OSError:
        return None


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.3g} GB"
