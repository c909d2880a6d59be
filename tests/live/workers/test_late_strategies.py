"""All strategies on a late device: what they save, load, are fed and timed by is that of one never late."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, get_args

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.saving import snapshot
from checkpointing.stores.opening import open_store
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.benchmark.timing import DeviceTimer
from jobs.training.data.synthetic import make_batches
from jobs.training.health.rank_speed import RankSpeed
from jobs.training.loop import attempt as loop
from jobs.training.loop.progress_reports import ProgressReporter
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.job import Precision, Recipe, Strategy
from tests.live.attempts import Wanted, attempt, digests_of
from tests.live.late_device import LATE, LateDevice
from tests.live.late_engines import engines_on
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, STRATEGIES, recipe_for
from tests.live.workers.test_late_loop import Prompt, recorded

NUM_STEPS = 3
# Only ends what hangs.
LATEST_S = 60.0
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def recipe_of(strategy: Strategy, **settings: Any) -> Recipe:
    usual = recipe_for(strategy, world_size=1)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "num_kv_heads": 1}
    return replace(usual, model=replace(usual.model, num_layers=1, head_dim=8, **sizes), **settings)


def cases(quick: Strategy) -> list[Any]:
    """All strategies; in the quick tests one alone."""
    plain = [recipe_of(strategy, precision=precision) for strategy in STRATEGIES for precision in PRECISIONS]
    offloaded = [recipe_of(strategy, offload="optimizer") for strategy in ("fsdp", "zero3")]
    return [
        pytest.param(
            recipe,
            marks=[] if recipe == recipe_of(quick) else [pytest.mark.soak],
            id=f"{recipe.strategy}-{recipe.precision}-{recipe.offload}",
        )
        for recipe in plain + offloaded
    ]


SEEDS = [0, pytest.param(1, marks=pytest.mark.soak), pytest.param(2, marks=pytest.mark.soak)]


class OwnWorkFirst(LateDevice):
    """Does the training's own work before that of any stream beside it, unless that is waited for.

    Drawn by lot, a copy of a few operations always comes before the update behind hundreds: what does not
    wait for it would not show under any seed.
    """

    def next_of(self, streams: list[int]) -> int:
        return min(streams)


def look_late_at_copies(patch: pytest.MonkeyPatch, num_steps: int) -> None:
    """Who uploads a save waits for its copy once the step after it is launched, and does not have the device
    make it before.
    """
    begin, finish, step = snapshot.Copying.__init__, snapshot.Copying.finish, loop.train_step
    begun, numbers = list[Event](), count(1)

    def begin_one(copying: Any, *arguments: Any) -> None:
        copying.is_overtaken = Event()
        begun.append(copying.is_overtaken)
        if next(numbers) == num_steps:  # No step follows.
            copying.is_overtaken.set()
        begin(copying, *arguments)

    def finish_late(copying: Any) -> None:
        assert copying.is_overtaken.wait(LATEST_S)
        finish(copying)

    def step_on(*arguments: Any, **more: Any) -> Any:
        loss = step(*arguments, **more)
        for is_overtaken in begun:
            is_overtaken.set()
        return loss

    patch.setattr(snapshot.Copying, "__init__", begin_one)
    patch.setattr(snapshot.Copying, "finish", finish_late)
    patch.setattr(loop, "train_step", step_on)


def told(store: Path, late: LateDevice, recipe: Recipe, num_steps: int, *, lazily: bool) -> Any:
    """What was recorded of each step, and what each save has."""
    with engines_on(late) as patch:
        patch.setattr(ProgressReporter, "is_report_due", lambda reporter: False)
        # What is a moment's work for a device takes this CPU minutes.
        patch.setattr(RankSpeed, "update", lambda speed: None)
        if isinstance(late, OwnWorkFirst):
            look_late_at_copies(patch, num_steps)
        attempt(
            Wanted(
                name="r",
                recipe=recipe,
                num_steps=num_steps,
                store=store,
                every_steps=1,
                copies_lazily=lazily,
                device=LATE,
                vendor="nvidia",
            )
        )
    repository = Repository(open_store(str(store)), "r")
    saved = [(one.step, digests_of(repository.manifest(one))) for one in repository.refresh().generations]
    return recorded(store), saved


def ways_of(recipe: Recipe, seed: int, folder: Path) -> dict[str, Any]:
    """Runs on a rank. Of two starts, what the second one loads is as late as all else."""
    late, again = LateDevice(seed), LateDevice(seed + 1)
    told(folder / "resumed", late, recipe, 1, lazily=True)
    return {
        "prompt": told(folder / "prompt", Prompt(0), recipe, NUM_STEPS, lazily=False),
        "late": told(folder / "late", late, recipe, NUM_STEPS, lazily=False),
        "lazily": told(folder / "lazily", late, recipe, NUM_STEPS, lazily=True),
        "overtaken": told(folder / "overtaken", OwnWorkFirst(seed), recipe, NUM_STEPS, lazily=True),
        "resumed": told(folder / "resumed", again, recipe, NUM_STEPS, lazily=True),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("recipe", cases("fsdp"))
def test_records_and_saves_are_those_of_a_device_that_is_never_late(
    recipe: Recipe, seed: int, tmp_path: Path
) -> None:
    [ways] = run_ranks(ways_of, recipe, seed, tmp_path, num_ranks=1, tmp_path=tmp_path)
    records, saves = ways["prompt"]
    assert [step for step, *_ in records] == [step for step, _ in saves] == [1, 2, 3]
    assert len({repr(digests) for _, digests in saves}) == NUM_STEPS
    assert [name for name, found in ways.items() if found != ways["prompt"]] == []


@pytest.mark.parametrize("recipe", cases("zero2"))
def test_what_feeds_and_times_steps_neither_waits_nor_changes_them(recipe: Recipe, tmp_path: Path) -> None:
    [(fed, plain)] = run_ranks(both_of, recipe, num_ranks=1, tmp_path=tmp_path)
    assert fed == plain


def both_of(recipe: Recipe) -> tuple[Any, Any]:
    """Runs on a rank."""
    return steps_of(recipe, is_fed=True), steps_of(recipe, is_fed=False)


def steps_of(recipe: Recipe, *, is_fed: bool) -> tuple[Any, ...]:
    """The losses of some steps, and how often they waited for the device and for one event.

    Either the batches are there and nothing is timed, or ``BatchFeed`` and ``DeviceTimer`` do their work.
    """
    # How far other streams are decides whether zero3 waits for an event, so it must not be drawn by lot.
    late = OwnWorkFirst(3)
    with engines_on(late):
        engine = build(recipe, LATE)
        feed, timer, there = BatchFeed(recipe, 0, LATE), DeviceTimer(LATE), make_batches(recipe, 0, CPU)
        batches = [
            [(late.tensor(ids), late.tensor(labels)) for ids, labels in there.load(step)]
            for step in range(NUM_STEPS)
        ]
        before, losses = (late.waits, late.events_waited_for, late.unpinned), []
        timer.mark()
        for step in range(NUM_STEPS):
            losses.append(train_step(engine, feed.of_step(step) if is_fed else batches[step]))
            if is_fed:
                timer.mark()
        after = (late.waits, late.events_waited_for, late.unpinned)
        if is_fed:
            # A step is some kernels, of a millisecond each.
            assert min(timer.step_times_s()) > 0.1
        found = [float(loss) for loss in losses]
        engine.close()
    return found, *(now - then for now, then in zip(after, before, strict=True))
