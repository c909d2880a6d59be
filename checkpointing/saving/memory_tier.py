"""The memory tier: each host keeps its ranks' newest snapshots in memory, and copies of other hosts'.

They are files of a file system in memory, such as ``/dev/shm``, so they outlive the processes that train, and
are read as those on a disk are: same parts, same digests. What is lost with a host lies on another one too.

No more than two saves are there at a time: the one before goes before a new one is written. That is safe
because no rank begins a new one before all have the last one and its copies, or know that not all have it.
"""

import os
import sys
from pathlib import Path
from shutil import disk_usage

from checkpointing.format.manifest import Cut, FilePart, part_name
from checkpointing.saving.budget import age
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.memory_limit import memory_left

# A save being written, and the one before it.
MOST_SAVES = 2
_LONG_S = 86_400.0
_MEMORY = Path("/proc/meminfo")


class MemoryTier(LocalTier):
    """One run's folder below ``folder``, in one that carries this user's name and is closed to others."""

    def __init__(self, folder: Path, run: str) -> None:
        self._root = folder
        self._run = run
        self._within = f"longhaul-{os.geteuid()}"
        super().__init__(folder, run, MOST_SAVES, within=self._within)

    def keep(self, cut: Cut, part: FilePart, data: memoryview, *, whole: str | None = None) -> str | None:
        """Writes a share of this host, or the copy of one. First goes what is older than this one, but for
        the save before it; or, where that did not come everywhere, for the generation ``whole``, if it is
        here. Newer than this one is what survivors have left meanwhile.
        """
        finding = self._store.set_aside_what_was_open()
        older = [share for share in self._look().shares if age(share) < age((cut, part))]
        spared = [age(share) for share in older if share[0].generation == whole] or [*map(age, older)]
        for share in older:
            if age(share) != max(spared):
                self._delete(*share)
        self._put(cut, part, data)
        return finding

    def keep_beside(self, cut: Cut, part: FilePart, data: memoryview) -> None:
        """Writes a share and deletes nothing: what is there may be all that is whole."""
        self._put(cut, part, data)

    def has(self, cut: Cut, rank: int) -> bool:
        """Whether a rank's share is there, judging by names."""
        return f"{self._folder}/{cut.generation}/{part_name(rank)}" in self._store.list(
            f"{self._folder}/{cut.generation}"
        )

    def drop(self, cut: Cut, part: FilePart) -> None:
        """Deletes one share."""
        self._delete(cut, part)

    def free_bytes(self) -> int:
        """How much more there may be here: what folder, machine and container all have free."""
        root = next(one for one in (self._store.root, *self._store.root.parents) if one.exists())
        bounds = (disk_usage(root).free, _available_bytes(), memory_left())
        return min(bound for bound in bounds if bound is not None)

    def forget(self, *, but: str | None = None) -> None:
        """Deletes all of this run but the generation ``but``."""
        for cut, part in self._look().shares:
            if cut.generation != but:
                self._delete(cut, part)

    def forget_old_runs(self, *, now_s: float) -> None:
        """Deletes what other runs of this user have left here: those that saved nothing for a day."""
        runs = f"{self._within}/runs/"
        found = {name.removeprefix(runs).split("/")[0] for name in self._store.list(runs.rstrip("/"))}
        # This run may have waited for longer than a day, and has just resumed what lies here.
        for run in found - {self._run}:
            other = MemoryTier(self._root, run)
            if all(now_s - cut.created_s > _LONG_S for cut, _ in other.inventory()):
                other.forget()


def _available_bytes() -> int:
    with _MEMORY.open(encoding="utf-8") as file:
        found = next((line for line in file if line.startswith("MemAvailable:")), None)
    return int(found.split()[1]) * 1024 if found else sys.maxsize
