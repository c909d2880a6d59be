"""A run that was interrupted is the run that was not: on real ranks, a real store, under every strategy."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, permutations
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Quarantine
from checkpointing.stores.opening import open_store
from jobs.training.task.events import Warned
from jobs.training.task.job import Strategy
from tests.live.attempts import Story, Wanted, attempt_each, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.trainings import STRATEGIES, recipe_for

HALF, WHOLE = 4, 8
TOLERANCE = 1e-5


def go(wanted: list[Wanted], tmp_path: Path, num_ranks: int = 2) -> list[Story]:
    """Rank 0's stories."""
    return run_ranks(attempt_each, wanted, num_ranks=num_ranks, tmp_path=tmp_path)[0]


# Each is once what is gone on from and once what goes on.
RING = tuple(zip(STRATEGIES, (*STRATEGIES[1:], STRATEGIES[0]), strict=True))
PAIRS = tuple(permutations(STRATEGIES, 2))


@pytest.mark.parametrize("pairs", [RING, pytest.param(PAIRS, marks=pytest.mark.soak)], ids=["ring", "all"])
def test_every_strategy_goes_on_to_the_bit_and_from_others_within_1e_5(
    pairs: Sequence[tuple[Strategy, Strategy]], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    straight = [
        Wanted(
            name=f"{name}-straight",
            recipe=recipe_for(name, world_size=2),
            num_steps=WHOLE,
            store=store,
            eval_every=3,
        )
        for name in STRATEGIES
    ]
    halves = [replace(one, name=one.name.replace("straight", "half"), num_steps=HALF) for one in straight]
    resumed = [replace(one, num_steps=WHOLE) for one in halves]
    crossed = [
        replace(one, name=f"{source}-to-{target}", origin=f"{source}-half")
        for source, target in pairs
        for one in straight
        if one.recipe.strategy == target
    ]
    # What starts from the halves comes before they are finished.
    stories = go([*straight, *halves, *crossed, *resumed], tmp_path)
    ends = dict(zip((one.name for one in chain(straight, halves, crossed)), stories, strict=False))

    for straight_one, resumed_one in zip(straight, resumed, strict=True):
        ours = digests_of(newest_manifest(store, resumed_one.name))
        assert ours == digests_of(newest_manifest(store, straight_one.name)), straight_one.recipe.strategy
    starts = [story.start.step for story in stories[-len(resumed) :]]
    assert starts == [HALF] * len(STRATEGIES)

    val_losses = [val_loss_of(store, one.name, step=3) for one in straight]
    assert max(val_losses) - min(val_losses) <= TOLERANCE

    expected = ends["ddp-straight"].end.loss
    worst = max(abs(ends[one.name].end.loss - expected) for one in crossed)
    assert [ends[one.name].start.step for one in crossed] == [HALF] * len(crossed)
    assert worst <= TOLERANCE
    print(f"\n{len(resumed)} to the bit, {len(crossed)} crossings within {worst:.1e}")


def val_loss_of(store: Path, run: str, *, step: int) -> float:
    generations = Repository(open_store(str(store)), run).refresh().generations
    return next(found for found in generations if found.step == step).metrics["val_loss"]


# By default `test_elastic` goes from two ranks to one and back.
@pytest.mark.soak
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4)])
def test_a_run_goes_on_at_another_world_size(before: int, after: int, tmp_path: Path) -> None:
    def wanted(name: str, world_size: int, **changes: object) -> Wanted:
        recipe = recipe_for("zero2", world_size=world_size, grad_accum=4 // world_size)
        return replace(
            Wanted(name=name, recipe=recipe, num_steps=WHOLE, store=tmp_path / "store"),
            **changes,  # type: ignore[arg-type]  # fields of it
        )

    [straight] = go([wanted("straight", before)], tmp_path, before)
    go([wanted("moved", before, num_steps=HALF)], tmp_path, before)
    [moved] = go([wanted("moved", after)], tmp_path, after)
    assert moved.start.step == HALF
    assert moved.end.loss == pytest.approx(straight.end.loss, abs=TOLERANCE)


def test_a_disk_is_nearer_than_the_store_and_the_store_mends_a_disk(tmp_path: Path) -> None:
    store, disk = tmp_path / "store", tmp_path / "disk"
    first = Wanted(name="r", recipe=recipe_for("fsdp", world_size=2), num_steps=HALF, store=store, disk=disk)
    go([first], tmp_path)
    payload = sorted((store / "runs/r/gen").rglob("*.safetensors"))
    hidden = [path.rename(path.with_suffix(".hidden")) for path in payload]
    [near] = go([replace(first, num_steps=HALF + 1)], tmp_path)
    assert near.start.step == HALF
    assert near.start.trail[-1].endswith("from the nodes' disks")

    for path in hidden:
        path.rename(path.with_suffix(".safetensors"))
    for path in disk.rglob("*.safetensors"):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    [mended] = go([replace(first, num_steps=WHOLE)], tmp_path)
    assert mended.start.step == HALF + 1
    straight = replace(first, name="straight", num_steps=WHOLE, disk=None)
    go([straight], tmp_path)
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(store, "straight"))


def test_a_disk_that_can_not_be_read_is_said_and_the_store_is_gone_on_from(tmp_path: Path) -> None:
    store, disk = tmp_path / "store", tmp_path / "disk"
    first = Wanted(name="r", recipe=recipe_for("fsdp", world_size=2), num_steps=HALF, store=store, disk=disk)
    go([first], tmp_path)
    (folder,) = disk.iterdir()
    folder.rename(tmp_path / "gone")
    folder.symlink_to(folder)
    [story] = go([replace(first, num_steps=WHOLE)], tmp_path)
    assert (story.start.step, story.end.step) == (HALF, WHOLE)
    [warning] = [one.text for one in story.told if isinstance(one, Warned)]
    assert warning.startswith("rank 0: the saves on this node can't be read: ")


def test_what_only_the_disks_know_is_gone_on_from_if_each_has_what_its_rank_loads(tmp_path: Path) -> None:
    """As after an outage of the store: the newest save never reached it.

    Copies of the state share the saving, so a rank loads what others saved, whose disks may be elsewhere.
    """
    store, disk, apart = tmp_path / "store", tmp_path / "disk", tmp_path / "apart"
    copied = replace(recipe_for("fsdp", world_size=2), shard_within=1)
    recipes = {"r": recipe_for("zero1", world_size=2), "ddp": recipe_for("ddp", world_size=2), "c": copied}
    first = [
        Wanted(name=name, recipe=recipe, num_steps=HALF, store=store, disk=disk)
        for name, recipe in recipes.items()
    ]
    go(first, tmp_path)
    for folder in (store / f"runs/{name}/gen" for name in recipes):
        folder.rename(folder.with_name("aside"))
        folder.write_text("a file where a folder should be")
    for story in go([replace(one, num_steps=HALF + 2, every_steps=1) for one in first], tmp_path):
        assert story.end.problem is not None
        assert {save.place for save in story.saves if save.problem} == {"store"}
    for folder in (store / f"runs/{name}/gen" for name in recipes):
        folder.unlink()
        folder.with_name("aside").rename(folder)
    for rank in range(2):
        copytree(disk, apart / f"rank-{rank}", ignore=ignore_patterns(f"rank-0000{1 - rank}.*"))
    resumed = go([replace(one, num_steps=WHOLE, disk=apart, has_own_disk=True) for one in first], tmp_path)
    assert [story.start.step for story in resumed] == [HALF + 2, HALF, HALF]
    assert resumed[0].start.trail[-1].endswith("on the nodes' disks alone")
    assert not any("passed over" in line for story in resumed for line in story.start.trail)


def test_a_damaged_newest_checkpoint_is_quarantined_and_the_one_before_it_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = Wanted(
        name="r", recipe=recipe_for("zero3", world_size=2), num_steps=HALF, store=store, every_steps=2
    )
    go([first], tmp_path)
    repository = Repository(open_store(str(store)), "r")
    newest = repository.refresh().generations[-1].name
    path = store / f"runs/r/gen/{newest}/rank-00001.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    [story] = go([replace(first, num_steps=WHOLE)], tmp_path)
    assert story.start.step == 2
    assert any(newest in line and "passed over" in line for line in story.start.trail)
    why = [record.entry.reason for record in repository.records() if isinstance(record.entry, Quarantine)]
    assert len(why) == 1
    assert "rank 1" in why[0] and "not what was saved" in why[0]


def test_what_two_starts_died_of_is_quarantined_and_the_one_before_it_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = Wanted(
        name="r", recipe=recipe_for("ddp", world_size=1), num_steps=HALF, store=store, every_steps=2
    )
    go([first], tmp_path, 1)
    repository = Repository(open_store(str(store)), "r")
    newest = repository.refresh().generations[-1]
    for _ in range(2):
        with pytest.raises(RankFailed, match="rank 0 died without a word"):
            go([replace(first, num_steps=WHOLE, dies_after_loading=True)], tmp_path, 1)
        assert repository.refresh().generation(newest.name) == newest
    assert repository.view.loads[newest.name] == 2

    [story] = go([replace(first, num_steps=WHOLE)], tmp_path, 1)
    assert (story.start.step, story.end.step) == (2, WHOLE)
    assert story.start.trail[0] == f"{newest.name}: passed over, 2 loads ended before one step was finished"
    assert story.start.trail[1] == f"{story.start.generation}: chosen, from the store"
    judged = [record.entry for record in repository.records() if isinstance(record.entry, Quarantine)]
    assert [(one.name, one.is_poison) for one in judged] == [(newest.name, True)]
    assert story.start.generation not in repository.refresh().loads


def test_a_fresh_start_begins_at_step_0_and_keeps_what_there_is_for_now(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = Wanted(name="r", recipe=recipe_for("ddp", world_size=2), num_steps=HALF, store=store)
    go([first], tmp_path)
    repository = Repository(open_store(str(store)), "r")
    [fresh] = go([replace(first, fresh=True, num_steps=1)], tmp_path)
    assert fresh.start.step == 0
    assert [found.step for found in repository.refresh().generations] == [HALF, 1]
    [named] = go([replace(first, num_steps=2, resume="step:1")], tmp_path)
    assert named.start.step == 1
    # The new life has two good ones by now.
    assert [found.step for found in repository.refresh().generations] == [1, 2]


def test_a_run_that_begins_at_its_last_step_with_another_run_has_a_checkpoint_of_its_own(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    other = Wanted(name="other", recipe=recipe_for("ddp", world_size=1), num_steps=HALF, store=store)
    heir = replace(other, name="heir", origin="other")
    _, first, again = go([other, heir, heir], tmp_path, 1)
    view = Repository(open_store(str(store)), "heir").refresh()
    [own] = view.generations
    assert (own.step, view.finished_step) == (HALF, HALF)
    assert first.start.generation != own.name
    assert (first.end.generation, again.start.generation, again.end.generation) == (own.name,) * 3
    assert digests_of(newest_manifest(store, "heir")) == digests_of(newest_manifest(store, "other"))


def test_ranks_that_see_another_folder_than_rank_0_are_named(tmp_path: Path) -> None:
    """As on two nodes with a directory of each one's own."""
    wanted = Wanted(
        name="r", recipe=recipe_for("ddp", world_size=2), num_steps=1, store=tmp_path, is_private=True
    )
    with pytest.raises(RankFailed, match=r"ranks \[1\] do not see what the others see there"):
        go([wanted], tmp_path)


def test_a_node_that_no_longer_sees_the_store_is_told_by_its_rank_alone(tmp_path: Path) -> None:
    """As one that came back without what is mounted there. Others are no reason to leave them out."""
    alone = Wanted(
        name="r", recipe=recipe_for("ddp", world_size=1), num_steps=1, store=tmp_path, is_private=True
    )
    go([alone], tmp_path, 1)
    both = replace(alone, recipe=recipe_for("ddp", world_size=2), num_steps=2)
    with pytest.raises(
        RankFailed, match="the run's checkpoints, which other ranks see, are not there"
    ) as told:
        go([both], tmp_path)
    assert "rank 1" in str(told.value).splitlines()[0]
