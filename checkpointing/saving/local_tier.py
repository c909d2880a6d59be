"""The nodes' own disks: each rank keeps the files of its newest few saves there, for a quick way back.

A generation on disk needs no commit. Beside each file stands its part, written after it, so a rank's share
is whole or not there; whether all ranks' shares are is found out when a run resumes.
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


def near_name(run: str, lineage: str) -> str:
    """A run's name on a disk: another log's run of the same name finds nothing of it, and deletes nothing."""
    return f"{run}@{lineage}"


class LocalTier:
    """One run's folder on this node; a ``~`` in front of it is this node's home. ``num_kept`` counts
    generations of one rank, and is at least 2.
    """

    def __init__(self, folder: Path, run: str, num_kept: int) -> None:
        self._store = LocalStore(folder.expanduser())
        self._folder = check_name(f"runs/{run}/gen")
        self._num_kept = num_kept

    def keep(self, cut: Cut, part: FilePart, data: memoryview) -> None:
        """Durable when it returns; then the oldest of this rank's beyond ``num_kept`` go.

        On a full disk they go before, and all but one do if need be.
        """
        try:
            self._put(cut, part, data)
        except Full:
            self._keep_only(1, part.rank)
            self._put(cut, part, data)
        self._keep_only(self._num_kept, part.rank)

    def inventory(self) -> list[tuple[Cut, FilePart]]:
        """All shares that are whole as far as names tell; their bytes are checked when they are read.

        What can't be read, or lies where another share belongs, is left out.
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
        """Deletes what killed saves left, by the names that saves give. Call it while no rank saves here."""
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
        """The file, and the part that makes it count."""
        folder = f"{self._folder}/{cut.generation}"
        return f"{folder}/{part.file}", f"{folder}/{part_name(part.rank)}"


def _oldest_first(found: Sequence[tuple[Cut, FilePart]]) -> list[tuple[Cut, FilePart]]:
    return sorted(found, key=lambda share: (share[0].term, share[0].number))
