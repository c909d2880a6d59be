"""Saves that are copied while the next step computes are those that were copied before it: to the bit."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from threading import Event
from typing import Any, get_args

import pytest
import torch.distributed as dist

from checkpointing.generations.repository import Repository
from checkpointing.saving import snapshot
from checkpointing.stores.opening import open_store
from jobs.training.data.synthetic import make_batches
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.job import Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Checkpointing, Fp8
from jobs.training.task.stop_request import StopRequest
from tests.live import saved_pieces
from tests.live.attempts import Story, Wanted, attempt, attempt_each, digests_of
from tests.live.ranks import RankFailed, run_ranks
from tests.live.trainings import CPU, STRATEGIES, recipe_for

NUM_STEPS = 2
# Longer than a step: a step that does not wait for its save's copy comes first.
COPY_S = 1.0


def recipe_of(strategy: Strategy, precision: Precision = "bf16", **settings: Any) -> Recipe:
    """Of three micro-batches, with gradients that are always clipped."""
    usual = recipe_for(strategy, world_size=2, precision=precision, grad_accum=3)
    return replace(usual, optimizer=replace(usual.optimizer, clip_norm=0.01), **settings)


# What decides where state lies, in which dtype it is computed with, and what reads it in a step.
FEW = [
    recipe_of("fsdp", offload="optimizer", activation_checkpointing="full", cross_entropy="chunked"),
    recipe_of("zero3", offload="optimizer"),
]
SOAK = [
    *(recipe_of(strategy, precision) for strategy, precision in product(STRATEGIES, get_args(Precision))),
    *(
        recipe_of(strategy, activation_checkpointing=mode, cross_entropy="chunked", model=preset("qwen-tiny"))
        for strategy, mode in product(STRATEGIES, get_args(Checkpointing))
    ),
    *(recipe_of(strategy, compile="block") for strategy in STRATEGIES if strategy != "zero3"),
    *(recipe_of(strategy, fp8=fp8) for strategy, fp8 in product(("ddp", "fsdp"), get_args(Fp8))),
    *(recipe_of("fsdp", shard_within=1, offload=offload) for offload in ("none", "optimizer")),
    *(
        recipe_of(strategy, precision, offload="optimizer")
        for strategy, precision in product(("fsdp", "zero3"), get_args(Precision))
    ),
]


@contextmanager
def late_copies() -> Iterator[None]:
    """Each copy in the background begins late: when the training waits for it, or long after a step."""
    begin, copy, settle = snapshot.Copying.__init__, snapshot.Copying._copy, snapshot.Copying.settle

    def begin_late(copying: Any, *arguments: Any) -> None:
        copying.is_awaited = Event()
        begin(copying, *arguments)

    def copy_late(copying: Any, pairs: Any) -> None:
        # Nobody trains on after the last save, so nobody waits.
        if copying.is_awaited.wait(COPY_S):
            time.sleep(COPY_S / 4)  # So that who does not wait for its end comes first.
        copy(copying, pairs)

    def settle_it(copying: Any) -> None:
        copying.is_awaited.set()
        settle(copying)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot.Copying, "__init__", begin_late)
        patch.setattr(snapshot.Copying, "_copy", copy_late)
        patch.setattr(snapshot.Copying, "settle", settle_it)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The names of a rank's pieces, and which had other bytes before a step's update, and after it."""

    before: frozenset[str]
    by_update: frozenset[str]
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    stories: list[Story]
    written: list[Written]


def look(wanted: list[Wanted]) -> Seen:
    """Runs on a rank."""
    with late_copies():
        stories = attempt_each(wanted)
    return Seen(
        stories=stories, written=[written_in_a_step(one.recipe) for one in wanted if one.copies_lazily]
    )


def written_in_a_step(recipe: Recipe) -> Written:
    """Runs on a rank. Of the second step: before the first one some state is zero."""
    engine = build(recipe, CPU)
    batches = make_batches(recipe, dist.get_rank(), CPU)
    train_step(engine, batches.load(0))
    states = [bytes_of(engine)]
    engine.evaluate(*batches.load(1)[0])
    train_step(engine, batches.load(1), before_update=lambda: states.append(bytes_of(engine)))
    begin, before, end = *states, bytes_of(engine)
    engine.close()
    return Written(
        before=frozenset(name for name in begin if before[name] != begin[name]),
        by_update=frozenset(name for name in begin if end[name] != before[name]),
        names=frozenset(begin),
    )


def bytes_of(engine: Engine) -> dict[str, str]:
    """Digests of what this rank saves, by name."""
    return {piece.name: saved_pieces.digest([piece]) for piece in engine.pieces() if piece.values.numel()}


def saved_in(store: Path, run: str) -> list[tuple[int, list[tuple[str, ...]]]]:
    repository = Repository(open_store(str(store)), run)
    found = repository.refresh().generations
    return [(one.step, digests_of(repository.manifest(one))) for one in found]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lazy")


@pytest.fixture(scope="module", params=[FEW, pytest.param(SOAK, marks=pytest.mark.soak)], ids=["few", "all"])
def wanted(request: pytest.FixtureRequest, store: Path) -> list[Wanted]:
    """Each twice: copied at once, and lazily."""
    return [
        Wanted(
            name=f"{len(request.param)}-{number}-{'lazily' if lazily else 'at-once'}",
            recipe=recipe,
            num_steps=NUM_STEPS,
            store=store,
            every_steps=1,
            copies_lazily=lazily,
        )
        for (number, recipe), lazily in product(enumerate(request.param), (False, True))
    ]


@pytest.fixture(scope="module")
def seen(wanted: list[Wanted], store: Path) -> list[Seen]:
    return run_ranks(look, wanted, num_ranks=2, tmp_path=store, deadline_s=3600)


def in_pairs(wanted: list[Wanted]) -> Iterable[tuple[Wanted, Wanted]]:
    return zip(wanted[::2], wanted[1::2], strict=True)


def test_each_generation_is_the_same_to_the_bit(wanted: list[Wanted], seen: list[Seen], store: Path) -> None:
    torn = []
    for at_once, lazily in in_pairs(wanted):
        expected = saved_in(store, at_once.name)
        assert [step for step, _ in expected] == [1, 2]
        if saved_in(store, lazily.name) != expected:
            torn.append(lazily.recipe)
    assert not torn
    assert not [note for story in seen[0].stories for note in story.saves if note.problem]


def test_what_was_copied_lazily_says_how_long_its_update_waited(
    wanted: list[Wanted], seen: list[Seen]
) -> None:
    waits = [
        note.blocked_s
        for one, story in zip(wanted, seen[0].stories, strict=True)
        for note in story.saves
        if one.copies_lazily and note.step < NUM_STEPS
    ]
    assert len(waits) == len(wanted) // 2 * (NUM_STEPS - 1)
    assert min(waits) > 0


def test_of_what_is_saved_an_update_writes_all_and_nothing_else_writes_any(seen: list[Seen]) -> None:
    for rank in seen:
        for written in rank.written:
            assert not written.before
            assert written.by_update == written.names


class Broken(Exception):
    pass


def break_down() -> None:
    raise Broken


def die() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def interrupted(interrupt: Callable[[], None], step: int) -> Iterator[None]:
    """Inside, ``interrupt`` is called as ``step`` begins."""
    accumulate, number = NativeEngine.accumulate, count()

    def accumulated(engine: NativeEngine, *batch: Any, **more: Any) -> Any:
        if next(number) == (step - 1) * FEW[0].grad_accum:
            interrupt()
        return accumulate(engine, *batch, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeEngine, "accumulate", accumulated)
        yield


def in_the_way_of_a_copy(run: Wanted, store: Path) -> None:
    """Runs on a rank: while a save is copied come a run's end, a stop, and a failure."""
    attempt(replace(run, name="ended", copies_lazily=False))
    with late_copies():
        asked, request = Event(), StopRequest(aim="stop", why="a test")
        with interrupted(asked.set, step=1):
            # All ranks follow it after the second step, as they save that.
            attempt(replace(run, name="stopped", num_steps=9), lambda: request if asked.is_set() else None)
        with interrupted(break_down, step=2), pytest.raises(Broken):
            attempt(replace(run, name="failed"))
        # What is on its way goes on as long as its process does.
        while not saved_in(store, "failed"):
            time.sleep(0.05)


def die_while_copying(run: Wanted) -> None:
    """Runs on a rank."""
    with late_copies(), interrupted(die, step=2):
        attempt(run)


@pytest.fixture
def run(store: Path) -> Wanted:
    return Wanted(
        name="killed", recipe=FEW[0], num_steps=NUM_STEPS, store=store, every_steps=1, copies_lazily=True
    )


def test_a_save_is_whole_though_a_stop_or_a_failure_comes_while_it_is_copied(run: Wanted) -> None:
    run_ranks(in_the_way_of_a_copy, run, run.store, num_ranks=2, tmp_path=run.store)
    expected = saved_in(run.store, "ended")
    assert [step for step, _ in expected] == [1, 2]
    assert saved_in(run.store, "stopped") == expected
    assert saved_in(run.store, "failed") == expected[:1]


@pytest.mark.soak
def test_a_save_that_a_kill_overtakes_never_was(run: Wanted) -> None:
    with pytest.raises(RankFailed, match="died without a word"):
        run_ranks(die_while_copying, run, num_ranks=2, tmp_path=run.store)
    assert saved_in(run.store, "killed") == []
    again = [run, replace(run, name="undisturbed")]
    run_ranks(attempt_each, again, num_ranks=2, tmp_path=run.store)
    assert saved_in(run.store, "killed") == saved_in(run.store, "undisturbed") != []
