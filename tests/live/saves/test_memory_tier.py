"""Snapshots in the hosts' memory: real ranks, each on a node of its own, all of which fall at one step."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from checkpointing.format.manifest import Manifest
from checkpointing.saving.memory_tier import MemoryTier
from jobs.training.state import bringing
from jobs.training.task.job import Strategy
from tests.live.attempts import Story, Wanted, attempt, attempt_each, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.trainings import recipe_for
from tests.unit.other_user import NOBODY, needs_root

# All fall at the sixth step, of which the store has no more than the fourth.
WHOLE, FALL, IN_STORE = 8, 6, 4
# A step that memory and store have.
IN_BOTH = 3
NUM_RANKS = 3
Loss = Callable[[Path], None]


def lose(*nodes: int) -> Loss:
    def lose_them(memory: Path) -> None:
        for node in nodes:
            rmtree(memory / f"node-{node}")

    return lose_them


def damage(share: int, *nodes: int) -> Loss:
    def flip(memory: Path) -> None:
        for node in nodes:
            for path in (memory / f"node-{node}").rglob(f"*/rank-{share:05}.safetensors"):
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(data)

    return flip


def resize(node: int, share: int, num_bytes: int) -> Loss:
    """The copy of a share, and where its owner's host is gone."""

    def change(memory: Path) -> None:
        lose(share)(memory)
        for path in (memory / f"node-{node}").rglob(f"*/rank-{share:05}.safetensors"):
            os.truncate(path, num_bytes)

    return change


def nothing(_: Path) -> None:
    pass


def wanted_in(tmp_path: Path, strategy: Strategy, **changes: Any) -> Wanted:
    return replace(
        Wanted(
            name="r",
            recipe=recipe_for(strategy, world_size=NUM_RANKS),
            num_steps=WHOLE,
            store=tmp_path / "store",
            every_steps=IN_STORE,
            memory=tmp_path / "memory",
        ),
        **changes,
    )


def fallen(tmp_path: Path, strategy: Strategy, *, falls_at: int = FALL, **changes: Any) -> Wanted:
    """A run that all ranks left at one step."""
    wanted = wanted_in(tmp_path, strategy, **changes)
    with pytest.raises(RankFailed):
        run_ranks(attempt, replace(wanted, falls_at=falls_at), num_ranks=NUM_RANKS, tmp_path=tmp_path)
    return wanted


def undisturbed(tmp_path: Path, wanted: Wanted, num_ranks: int = NUM_RANKS) -> Manifest:
    alone = replace(wanted, store=tmp_path / "alone", memory=None)
    run_ranks(attempt, alone, num_ranks=num_ranks, tmp_path=tmp_path)
    return newest_manifest(alone.store, alone.name)


def went_on(tmp_path: Path, wanted: Wanted, num_ranks: int = NUM_RANKS) -> Story:
    return run_ranks(attempt_each, [wanted], num_ranks=num_ranks, tmp_path=tmp_path)[0][0]


SOAK = pytest.mark.soak
ALONE, STORE = "in the hosts' memory alone", "from the store"


@pytest.mark.parametrize(
    ("strategy", "what", "step", "where"),
    [
        pytest.param("fsdp", nothing, FALL, ALONE, id="processes", marks=SOAK),
        pytest.param("fsdp", lose(1), FALL, ALONE, id="a host"),
        pytest.param("ddp", lose(1), FALL, ALONE, id="a host under ddp", marks=SOAK),
        pytest.param("zero3", lose(1), FALL, ALONE, id="a host under zero3", marks=SOAK),
        pytest.param("zero1", lose(2), FALL, ALONE, id="a host under zero1", marks=SOAK),
        pytest.param("fsdp", lose(1, 2), IN_STORE, STORE, id="a host and its keeper"),
        pytest.param("ddp", lose(0, 1), IN_STORE, STORE, id="a host and its keeper under ddp", marks=SOAK),
        pytest.param("fsdp", damage(0, 0), FALL, ALONE, id="a flipped bit"),
        pytest.param("ddp", damage(1, 2), FALL, ALONE, id="a flipped bit of a copy under ddp", marks=SOAK),
        pytest.param("fsdp", damage(0, 0, 1), IN_STORE, STORE, id="a flipped bit in both copies"),
        pytest.param("fsdp", resize(2, 1, 0), IN_STORE, STORE, id="an empty copy"),
        pytest.param("fsdp", resize(2, 1, 2**38), IN_STORE, STORE, id="a huge copy", marks=SOAK),
    ],
)
def test_a_run_goes_on_from_what_is_left_of_the_hosts_memory(
    tmp_path: Path, strategy: Strategy, what: Loss, step: int, where: str
) -> None:
    wanted = fallen(tmp_path, strategy)
    assert wanted.memory is not None
    what(wanted.memory)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (step, where)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))
    left = [path for path in wanted.memory.rglob("*") if path.is_file()]
    assert left == [], "memory is given back at the end"


@SOAK
def test_if_memory_alone_had_any_and_it_is_damaged_the_next_attempt_but_one_begins_at_step_0(
    tmp_path: Path,
) -> None:
    wanted = fallen(tmp_path, "fsdp", falls_at=2, every_steps=WHOLE)
    assert wanted.memory is not None
    damage(0, 0, 1)(wanted.memory)
    with pytest.raises(RankFailed, match="the next attempt looks again"):
        went_on(tmp_path, wanted)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.generation) == (0, None)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))


def test_if_one_hosts_memory_can_not_be_read_the_store_is(tmp_path: Path) -> None:
    wanted = fallen(tmp_path, "fsdp")
    assert wanted.memory is not None
    lose(1)(wanted.memory)
    # Nobody can even ask whether it is there, whoever the test's user is.
    (wanted.memory / "node-1").symlink_to("x" * 300)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (IN_STORE, STORE)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))


def went_on_but_nothing_came(wanted: Wanted) -> Story:
    """Runs on a rank. What a host can't keep must not be sent to it."""

    def never(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a share was sent")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bringing, "receive", never)
        return attempt(wanted)


@needs_root
def test_a_host_whose_memory_is_not_read_is_brought_nothing(tmp_path: Path) -> None:
    wanted = fallen(tmp_path, "fsdp")
    assert wanted.memory is not None
    lose(1)(wanted.memory)
    planted = wanted.memory / f"node-1/longhaul-{os.geteuid()}"
    planted.mkdir(parents=True)
    # Its room can be told, but nothing there is read or written.
    os.chown(planted, NOBODY, NOBODY)
    story = run_ranks(went_on_but_nothing_came, wanted, num_ranks=NUM_RANKS, tmp_path=tmp_path)[0]
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (IN_STORE, STORE)


def went_on_but_room_is_not_told_twice(wanted: Wanted) -> Story:
    """Runs on a rank: once it has said that there is room, its machine does not say so again."""
    free_bytes, num_asked = MemoryTier.free_bytes, 0

    def once(tier: MemoryTier) -> int:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 2 and dist.get_rank() == 1:
            raise OSError("its room can't be told")
        return free_bytes(tier)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTier, "free_bytes", once)
        return attempt(wanted)


def test_a_host_that_has_said_that_there_is_room_is_not_asked_again(tmp_path: Path) -> None:
    """Where it could not say so, the other ranks would have waited for it."""
    wanted = fallen(tmp_path, "fsdp")
    assert wanted.memory is not None
    lose(1)(wanted.memory)
    story = run_ranks(went_on_but_room_is_not_told_twice, wanted, num_ranks=NUM_RANKS, tmp_path=tmp_path)[0]
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (FALL, ALONE)


@SOAK
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_fewer_hosts_go_on_from_the_memory_of_all_that_are_left(tmp_path: Path, strategy: Strategy) -> None:
    wanted = fallen(tmp_path, strategy)
    assert wanted.memory is not None
    lose(2)(wanted.memory)
    smaller = replace(wanted, recipe=recipe_for(strategy, world_size=2, grad_accum=3))
    story = went_on(tmp_path, smaller, num_ranks=2)
    assert (story.start.step, story.end.step) == (FALL, WHOLE)
    assert story.start.trail[-1].endswith(ALONE)


def test_a_damaged_copy_of_what_the_store_has_too_is_read_from_there(tmp_path: Path) -> None:
    """Chunk by chunk: only what is damaged comes from the store."""
    wanted = fallen(tmp_path, "fsdp", falls_at=IN_BOTH, every_steps=IN_BOTH)
    damage(0, 0, 1)(wanted.memory)
    story = went_on(tmp_path, wanted)
    assert story.start.step == IN_BOTH
    assert story.start.trail[-1].endswith("from the hosts' memory")
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))


def test_without_room_for_two_saves_and_copies_no_step_is_done(tmp_path: Path) -> None:
    small = wanted_in(tmp_path, "fsdp", memory_bytes=1_000_000)
    with pytest.raises(RankFailed) as refused:
        run_ranks(attempt, small, num_ranks=NUM_RANKS, tmp_path=tmp_path)
    text = str(refused.value)
    assert "checkpoint.memory: node node-0 would keep " in text
    assert "there are 0.001 GB by checkpoint.memory.max_bytes" in text
