"""Two faults at once: what one of them leaves to go on from is gone by the other. Real processes."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import pytest
import torch.distributed as dist

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.saving.memory_tier import MemoryTier
from jobs.training.task.job import Strategy
from tests.live.attempts import Story, Wanted, attempt, attempt_each, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.saves.test_last_state import FALL
from tests.live.saves.test_memory_tier import ALONE, NUM_RANKS, SOAK, STORE, fallen, wanted_in

Damage = Callable[[Wanted], None]
# What is lost, and where it goes on from: the step, and what has it.
Case = tuple[str, Damage, int, str]


def lose_memory(*nodes: int) -> Damage:
    def lose(wanted: Wanted) -> None:
        for node in nodes:
            rmtree(_there(wanted.memory) / f"node-{node}")

    return lose


def lose_disk(node: int) -> Damage:
    return lambda wanted: rmtree(_there(wanted.disk) / f"rank-{node}")


def spoil_the_stores_newest(wanted: Wanted) -> None:
    folder = max((wanted.store / "runs/r/gen").iterdir())
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def all_of(*damages: Damage) -> Damage:
    def do(wanted: Wanted) -> None:
        for damage in damages:
            damage(wanted)

    return do


def _there(folder: Path | None) -> Path:
    assert folder is not None
    return folder


# All fall at a step that memory alone has. Disks and store have two before it: the older one ends an epoch.
AT, NEWEST, BEFORE = 7, 5, 4
DISKS = "from the nodes' disks"
PAIR = lose_memory(1, 2)
CASES: tuple[Case, ...] = (
    ("a host", lose_memory(1), AT, ALONE),
    ("a host and the store's newest", all_of(lose_memory(1), spoil_the_stores_newest), AT, ALONE),
    ("a pair", PAIR, NEWEST, DISKS),
    ("a pair and a disk", all_of(PAIR, lose_disk(1)), NEWEST, STORE),
    ("a pair and the store's newest", all_of(PAIR, spoil_the_stores_newest), NEWEST, DISKS),
    ("these and the newest", all_of(PAIR, lose_disk(1), spoil_the_stores_newest), BEFORE, STORE),
)


@pytest.mark.parametrize(
    ("strategy", "cases"),
    [
        pytest.param("fsdp", CASES[3:], id="fsdp"),
        pytest.param("fsdp", CASES, id="fsdp, all", marks=SOAK),
        pytest.param("ddp", CASES, id="ddp, all", marks=SOAK),
    ],
)
def test_where_a_pair_of_memories_and_what_comes_next_are_lost_at_once_the_one_behind_it_is_used(
    strategy: Strategy, cases: Sequence[Case], tmp_path: Path
) -> None:
    before = tmp_path / "before"
    before.mkdir()
    saving = {"every_steps": NEWEST, "memory_every": AT, "has_own_disk": True}
    fallen(before, strategy, falls_at=AT, disk=before / "disk", **saving)
    runs = []
    for number, (_, damage, _, _) in enumerate(cases):
        place = tmp_path / f"{number}"
        copytree(before, place)
        wanted = wanted_in(place, strategy, disk=place / "disk", **saving)
        damage(wanted)
        runs.append(wanted)
    alone = replace(runs[0], store=tmp_path / "alone", memory=None, disk=None)
    stories = run_ranks(attempt_each, [*runs, alone], num_ranks=NUM_RANKS, tmp_path=tmp_path)[0]
    expected = digests_of(newest_manifest(alone.store, "r"))
    for (what, _, step, where), wanted, story in zip(cases, runs, stories, strict=False):
        came_from = story.start.step, story.start.trail[-1].partition("chosen, ")[2]
        assert came_from == (step, where), what
        assert digests_of(newest_manifest(wanted.store, "r")) == expected, what


def attempt_whose_survivors_die_while_they_leave(wanted: Wanted, dying: dict[int, int]) -> Story:
    """``dying``: by rank, after how many shares of its last state it dies."""
    put, num_put = MemoryTier.keep_beside, 0

    def die(tier: MemoryTier, cut: Cut, part: FilePart, data: memoryview) -> None:
        nonlocal num_put
        if num_put == dying.get(dist.get_rank()):
            os.kill(os.getpid(), signal.SIGKILL)
        put(tier, cut, part, data)
        num_put += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTier, "keep_beside", die)
        return attempt(wanted)


@pytest.mark.parametrize(
    ("dying", "step"),
    [
        pytest.param({2: 1}, FALL, id="one of them", marks=SOAK),
        pytest.param({0: 1, 2: 1}, FALL - 1, id="both, and a share is missing"),
        pytest.param({0: 2, 2: 2}, FALL, id="both, and what they left is whole together", marks=SOAK),
        pytest.param({0: 0, 2: 0}, FALL - 1, id="both before they left anything", marks=SOAK),
    ],
)
def test_who_survives_a_peer_may_die_too_while_it_leaves_its_last_state_and_who_takes_over_as_well(
    dying: dict[int, int], step: int, tmp_path: Path
) -> None:
    wanted = wanted_in(tmp_path, "ddp", memory_every=4, draws=False)
    falling = replace(wanted, falls_at=FALL, fallen_rank=1)
    with pytest.raises(RankFailed):
        run_ranks(
            attempt_whose_survivors_die_while_they_leave,
            falling,
            dying,
            num_ranks=NUM_RANKS,
            tmp_path=tmp_path,
        )
    (tmp_path / "fallen").unlink()
    with pytest.raises(RankFailed):
        taking_over = replace(wanted, dies_after_loading=True)
        run_ranks(attempt, taking_over, num_ranks=NUM_RANKS, tmp_path=tmp_path)
    alone = replace(wanted, store=tmp_path / "alone", memory=None)
    story, _ = run_ranks(attempt_each, [wanted, alone], num_ranks=NUM_RANKS, tmp_path=tmp_path)[0]
    assert story.start.step == step
    ours, theirs = (newest_manifest(folder, "r") for folder in (wanted.store, alone.store))
    assert digests_of(ours) == digests_of(theirs)
