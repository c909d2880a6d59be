"""Where a run's saves lie near its ranks: in the hosts' memory, and on their disks."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpointing.log.history import Generation
from checkpointing.saving.budget import Budget
from checkpointing.saving.local_tier import LocalTier, local_tier_name
from checkpointing.saving.memory_tier import MemoryTier
from jobs.training.state.saved_run import SavedRun, saved_run
from jobs.training.task.task import Saving, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTiers:
    """Those of this node. All nodes have the same ones."""

    memory: MemoryTier | None = None
    disk: LocalTier | None = None

    @property
    def fastest_first(self) -> tuple[LocalTier, ...]:
        return tuple(tier for tier in (self.memory, self.disk) if tier)


def near_tiers_of(task: Task) -> NearTiers:
    if task.saving is None:
        return NearTiers()
    saved = saved_run(task)
    return NearTiers(memory=memory_tier(task.saving, saved), disk=local_tier(task.saving, saved))


def memory_tier(saving: Saving, saved: SavedRun) -> MemoryTier | None:
    if saving.memory is None:
        return None
    return MemoryTier(Path(saving.memory.folder), local_tier_name(saved.run, saved.lineage))


def local_tier(
    saving: Saving, saved: SavedRun, verified: Callable[[], Generation | None] = lambda: None
) -> LocalTier | None:
    if saving.disk is None:
        return None
    # Both launchers set the variable where there are several ranks.
    budget = Budget(max_bytes=saving.disk_max_bytes, num_ranks=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    name = local_tier_name(saved.run, saved.lineage)
    return LocalTier(Path(saving.disk), name, saving.disk_keep, budget, verified=verified)
