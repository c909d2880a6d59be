"""A share that is damaged in a host's memory is taken from its disk, where that has it whole."""

from pathlib import Path

import pytest
import torch

from checkpointing.format.digests import digests
from checkpointing.format.manifest import FilePart, file_name, manifest_of
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.memory_tier import MemoryTier
from jobs.training.state.bringing import without_damaged
from jobs.training.state.choosing import Offer, Source
from jobs.training.state.near_tiers import NearTiers
from jobs.training.state.restoring import held_here
from jobs.training.state.saved_run import SavedOrder, SavedRun, cut_of
from jobs.training.state.sharing_memory import seat_of
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint

DATA = bytes(range(256)) * 16
SAVED = SavedRun(
    run="r", term=1, attempt="a", lineage="l", strategy="ddp", world_size=1, ranks_per_copy=1, about={}
)
CUT = cut_of(SAVED, StepPoint(step=7, position=7, epoch_end=None), 1, SavedOrder(), {})
PART = FilePart(
    rank=0,
    file=file_name(0),
    num_bytes=len(DATA),
    chunks=digests(memoryview(DATA)),
    tensors={},
    shards={},
    state={"canary": ""},
)


@pytest.mark.parametrize("is_disk_damaged", [False, True])
def test_what_is_damaged_in_memory_is_taken_from_the_same_hosts_disk(
    tmp_path: Path, is_disk_damaged: bool
) -> None:
    near = NearTiers(memory=MemoryTier(tmp_path / "memory", "r"), disk=LocalTier(tmp_path / "disk", "r", 2))
    for tier in near.fastest_first:
        tier.keep(CUT, PART, memoryview(DATA))
    for place in ("memory", "disk") if is_disk_damaged else ("memory",):
        [file] = (tmp_path / place).rglob("*.safetensors")
        file.write_bytes(DATA[:-1] + b"x")
    context = Context(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"), node="n")
    tiers, held, _ = held_here(near, context)
    source = Source(
        repository=None,  # type: ignore[arg-type]  # Nothing is asked of the store.
        term=1,
        tiers=tiers,
        held=held,
        seats=[seat_of(context)],
        memory=near.memory,
    )
    offer = Offer(decision=None, manifest=manifest_of(CUT, [PART]), held=[{0: len(DATA)}])
    found = without_damaged(SAVED, context, source, offer)
    if is_disk_damaged:
        assert found is None
    else:
        assert found is not None
        assert [(one.tier, one.part.rank) for one in found[0].held] == [(near.disk, 0)]
        assert found[1].held == offer.held
