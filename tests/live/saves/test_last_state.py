"""What ranks leave that lose a peer: real ranks, each on a node of its own, of which one is killed."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from torch.nn import Parameter

from checkpointing.format.digests import digests
from checkpointing.saving.memory_tier import MemoryTier
from jobs.training.loop.progress_reports import ProgressReporter
from jobs.training.strategies import native
from jobs.training.strategies.optimizer import clip
from jobs.training.task.job import Strategy
from tests.live.attempts import Story, Wanted, attempt, digests_of, newest_manifest
from tests.live.ranks import RankFailed, run_ranks
from tests.live.saves.test_memory_tier import ALONE, SOAK, STORE, lose, undisturbed, wanted_in, went_on
from tests.live.trainings import recipe_for

# One rank falls at the fifth step, of which neither store nor memory has more than the fourth.
FALL, IN_STORE = 5, 4
MEMORY = "from the hosts' memory"


def left_by_survivors(tmp_path: Path, wanted: Wanted, num_ranks: int) -> None:
    with pytest.raises(RankFailed):
        falling = replace(wanted, falls_at=FALL, fallen_rank=1)
        run_ranks(attempt, falling, num_ranks=num_ranks, tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("strategy", "num_ranks", "shard_within", "lost", "step", "where"),
    [
        pytest.param("ddp", 3, None, (1,), FALL, ALONE, id="ddp"),
        pytest.param("ddp", 3, None, (1, 2), FALL, ALONE, id="ddp, and another host goes too", marks=SOAK),
        pytest.param("fsdp", 4, 2, (1,), FALL, ALONE, id="replicas of fsdp"),
        pytest.param("fsdp", 4, 2, (1, 3), IN_STORE, STORE, id="all replicas of a share", marks=SOAK),
        pytest.param("fsdp", 3, None, (1,), IN_STORE, MEMORY, id="fsdp without replicas"),
    ],
)
def test_survivors_leave_the_last_finished_step(
    tmp_path: Path,
    strategy: Strategy,
    num_ranks: int,
    shard_within: int | None,
    lost: tuple[int, ...],
    step: int,
    where: str,
) -> None:
    recipe = replace(recipe_for(strategy, world_size=num_ranks), shard_within=shard_within)
    # Of a mesh only those fail by themselves that talk to the lost one.
    wanted = wanted_in(
        tmp_path, strategy, recipe=recipe, memory_every=4, draws=False, are_asked=shard_within is not None
    )
    left_by_survivors(tmp_path, wanted, num_ranks)
    assert wanted.memory is not None
    lose(*lost)(wanted.memory)
    story = went_on(tmp_path, wanted, num_ranks)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (step, where)
    alone = undisturbed(tmp_path, wanted, num_ranks)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(alone)
    assert [path for path in wanted.memory.rglob("*") if path.is_file()] == [], "memory is given back"


def attempt_that_spoils_its_last_update(wanted: Wanted) -> Story:
    num_clipped = 0

    def spoil(parameters: Iterable[Parameter], max_norm: float) -> Tensor:
        nonlocal num_clipped
        found = list(parameters)
        num_clipped += 1
        if num_clipped == FALL and found[0].grad is not None:
            found[0].grad.fill_(float("nan"))
        return clip(found, max_norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "clip", spoil)
        return attempt(wanted)


def test_a_step_whose_gradient_is_no_number_is_not_left_though_nobody_was_told_of_it_yet(
    tmp_path: Path,
) -> None:
    wanted = wanted_in(tmp_path, "ddp", memory_every=4, draws=False)
    with pytest.raises(RankFailed):
        falling = replace(wanted, falls_at=FALL, fallen_rank=1)
        run_ranks(attempt_that_spoils_its_last_update, falling, num_ranks=3, tmp_path=tmp_path)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (IN_STORE, MEMORY)


def attempt_that_fails_after_its_last_save(wanted: Wanted) -> Story:
    def fail(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressReporter, "report_checkpoint", fail)
        return attempt(wanted)


def test_once_the_end_is_in_the_store_nothing_is_left_in_memory_any_more(tmp_path: Path) -> None:
    wanted = wanted_in(tmp_path, "ddp", memory_every=4, draws=False)
    with pytest.raises(RankFailed, match="Connection closed"):
        run_ranks(attempt_that_fails_after_its_last_save, wanted, num_ranks=3, tmp_path=tmp_path)
    assert newest_manifest(wanted.store, "r").cut.step == wanted.num_steps
    assert wanted.memory is not None
    assert [path for path in wanted.memory.rglob("*") if path.is_file()] == []


def test_nothing_is_left_where_random_numbers_are_drawn_that_only_the_lost_rank_knew(tmp_path: Path) -> None:
    wanted = wanted_in(tmp_path, "ddp", memory_every=100)
    left_by_survivors(tmp_path, wanted, 3)
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (IN_STORE, MEMORY)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))


def test_what_survivors_do_not_agree_on_is_not_used(tmp_path: Path) -> None:
    wanted = wanted_in(tmp_path, "ddp", memory_every=4, draws=False)
    left_by_survivors(tmp_path, wanted, 3)
    assert wanted.memory is not None
    # As if rank 2 had computed otherwise, and told its own digest.
    (run,) = [path.name for path in (wanted.memory / "node-2").glob("*/runs/*")]
    tier = MemoryTier(wanted.memory / "node-2", run)
    cut, part = next((cut, part) for cut, part in tier.inventory() if cut.step == FALL)
    with tier.open_share(cut, part) as file:
        data = bytearray(file.read())
    data[-1] ^= 1
    tier.keep_beside(cut, replace(part, chunks=digests(memoryview(data))), memoryview(data))
    story = went_on(tmp_path, wanted)
    assert (story.start.step, story.start.trail[-1].partition("chosen, ")[2]) == (IN_STORE, MEMORY)
    assert digests_of(newest_manifest(wanted.store, "r")) == digests_of(undisturbed(tmp_path, wanted))
