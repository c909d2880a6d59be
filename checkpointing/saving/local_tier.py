"""The local tier: each rank keeps the files of its newest few saves on its node's disk, to resume quickly.

A generation on disk needs no commit. Each file's part is written next to it, after it, so a rank's share is
whole or absent. Whether the shares of all ranks exist is found out when a run resumes.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from checkpointing.errors import Corrupt
from checkpointing.format.loading import GenerationPlace
from checkpointing.format.manifest import Cut, FilePart, decode_part, encode_part, is_of_a_save, part_name
from checkpointing.stores.contract import Full, StoreError, check_name
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

    def keep(self, cut: Cut, part: FilePart, data: memoryview) -> None:
        """Writes a share, which is durable on return, then deletes this rank's oldest shares beyond
        ``num_kept``.

        On a full disk, all but the newest earlier share are deleted first and the write is tried again.
        """
        try:
            self._put(cut, part, data)
        except Full:
            self._keep_only(1, part.rank)
            self._put(cut, part, data)
        self._keep_only(self._num_kept, part.rank)

    def inventory(self) -> list[tuple[Cut, FilePart]]:
        """Returns all shares that are whole judging by names; their bytes are checked when they are read.

        A part that cannot be read, or lies where another share belongs, is left out.
        """
        names = set(self._store.list(self._folder))
        found = []
        for name in (name for name in names if name.endswith(".json")):
            with suppress(Corrupt, StoreError):
                cut, part = decode_part(self._store.get(name))
                file, its_part = self._names(cut, part)
                if name == its_part and file in names:
                    found.append((cut, part))
        return found

    def place(self, generation: str) -> GenerationPlace:
        return GenerationPlace(store=self._store, folder=f"{self._folder}/{generation}")

    def tidy(self) -> None:
        """Deletes garbage of killed saves, recognised by the names that saves use. Call it while no rank
        saves here.
        """
        whole = {name for cut, part in self.inventory() for name in self._names(cut, part)}
        for name in set(self._store.list(self._folder)) - whole:
            if is_of_a_save(name):
                self._store.delete(name)
        left = self._store.abandoned_uploads(self._folder, before=datetime.now(UTC))
        self._store.abort_uploads(left)

    def _put(self, cut: Cut, part: FilePart, data: memoryview) -> None:
        file, its_part = self._names(cut, part)
        self._store.put(file, data)
        self._store.put(its_part, encode_part(cut, part))

    def _keep_only(self, num_kept: int, rank: int) -> None:
        mine = [(cut, part) for cut, part in self.inventory() if part.rank == rank]
        for cut, part in _oldest_first(mine)[:-num_kept]:
            for name in reversed(self._names(cut, part)):
                self._store.delete(name)

    def _names(self, cut: Cut, part: FilePart) -> tuple[str, str]:
        """Returns the file, and the part that makes the file count."""
        folder = f"{self._folder}/{cut.generation}"
        return f"{folder}/{part.file}", f"{folder}/{part_name(part.rank)}"


def _oldest_first(found: Sequence[tuple[Cut, FilePart]]) -> list[tuple[Cut, FilePart]]:
    return sorted(found, key=lambda share: (share[0].term, share[0].number))
