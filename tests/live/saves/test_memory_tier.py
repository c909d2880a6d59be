"""Snapshots in the hosts' memory: real ranks, each on a node of its own, all of which fall at one step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from checkpointing.format.manifest import Manifest
from tests.live.attempts import Story, Wanted, attempt, attempt_each, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.trainings import recipe_for

WHOLE, FALL, IN_STORE = 8, 6, 4
NUM_RANKS = 3
Loss = Callable[[Path], None]


def lose(*nodes: int) -> Loss:
    def lose_them(memory: Path) -> None:
        for node in nodes:
            rmtree(memory / f"node-{node}")

    return lose_them


def damage(node: int, share: int) -> Loss:
    def flip(memory: Path) -> None:
        for path in (memory / f"node-{node}").rglob(f"*0{FALL}-*/rank-{share:05}.safetensors"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)

    return flip


def nothing(_: Path) -> None:
    pass


def fallen(tmp_path: Path, strategy: str, **more: int) -> Wanted:
    """A run that all ranks left at step ``FALL``, of which the store has no more than step ``IN_STORE``."""
    wanted = Wanted(
        name="r",
        recipe=recipe_for(strategy, world_size=NUM_RANKS),
        num_steps=WHOLE,
        store=tmp_path / "store",
        every_steps=IN_STORE,
        memory=tmp_path / "memory",
        **more,
    )
    with pytest.raises(RankFailed):
        run_ranks(attempt, replace(wanted, falls_at=FALL), num_ranks=NUM_RANKS, tmp_path=tmp_path)
    return wanted


def undisturbed(tmp_path: Path, wanted: Wanted) -> Manifest:
    alone = replace(wanted, store=tmp_path / "alone", memory=None)
    run_ranks(attempt, alone, num_ranks=NUM_RANKS, tmp_path=tmp_path)
    return newest_manifest(alone.store, alone.name)


def went_on(tmp_path: Path, wanted: Wanted, num_ranks: int = NUM_RANKS) -> Story:
    return run_ranks(attempt_each, [wanted], num_ranks=num_ranks, tmp_path=tmp_path)[0][0]


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize(
    ("what", "step", "where"),
    [
        (nothing, FALL, "in the hosts' memory alone"),
        (lose(1), FALL, "in the hosts' memory alone"),
        (lose(1, 2), IN_STORE, "from the store"),
    ],
    ids=["processes", "a host", "a host and its keeper"],
)
def test_a_run_goes_on_from_what_is_left_of_the_hosts_memory(
    tmp_path: Path, strategy: str, what: Loss, step: int, where: str
) -> None:
    wanted = fallen(tmp_path, strategy)
    assert wanted.memory is not None
    what(wanted.memory)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (step, where)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))
    left = [path for path in wanted.memory.rglob("*") if path.is_file()]
    assert left == [], "memory is given back at the end"
