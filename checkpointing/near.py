"""The nodes' own disks: each rank keeps the files of its newest few saves there, for a quick way back.

A generation on disk needs no commit. Beside each file stands its part, written after it, so a rank's share
is whole or not there; whether all ranks' shares are is found out when a run resumes.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from checkpointing.errors import Corrupt
from checkpointing.loading import Place
from checkpointing.manifest import Cut, Part, decode_part, encode_part, part_name
from checkpointing.store import LocalStore, Missing, check_name


class NearDisk:
    """One run's folder on this node. ``num_kept`` counts generations of one rank, and is at least 2."""

    def __init__(self, folder: Path, run: str, num_kept: int) -> None:
        self._store = LocalStore(folder)
        self._folder = check_name(f"runs/{run}/gen")
        self._num_kept = num_kept

    def keep(self, cut: Cut, part: Part, data: memoryview) -> None:
        """Durable when it returns; then the oldest of this rank's beyond ``num_kept`` go."""
        folder = f"{self._folder}/{cut.generation}"
        self._store.put(f"{folder}/{part.file}", data)
        self._store.put(f"{folder}/{part_name(part.rank)}", encode_part(cut, part))
        mine = [found for found in self.inventory() if found[1].rank == part.rank]
        for old, its_part in _oldest_first(mine)[: -self._num_kept]:
            self._drop(old.generation, its_part)

    def inventory(self) -> list[tuple[Cut, Part]]:
        """All shares that are whole as far as names tell; their bytes are checked when they are read."""
        names = set(self._store.list(self._folder))
        found = []
        for name in names:
            if name.endswith(".json"):
                with suppress(Corrupt, Missing):
                    cut, part = decode_part(self._store.get(name))
                    if f"{self._folder}/{cut.generation}/{part.file}" in names:
                        found.append((cut, part))
        return found

    def place(self, generation: str) -> Place:
        return Place(store=self._store, folder=f"{self._folder}/{generation}")

    def _drop(self, generation: str, part: Part) -> None:
        folder = f"{self._folder}/{generation}"
        self._store.delete(f"{folder}/{part_name(part.rank)}")
        self._store.delete(f"{folder}/{part.file}")
        with suppress(OSError):  # Other ranks of this node still have files in it.
            (self._store.root / folder).rmdir()


def _oldest_first(found: Sequence[tuple[Cut, Part]]) -> list[tuple[Cut, Part]]:
    return sorted(found, key=lambda share: (share[0].term, share[0].number))
