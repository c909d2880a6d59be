"""Saves that are copied while the next step computes are those that were copied before it: to the bit."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
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
from jobs.training.task.job import Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Checkpointing, Fp8
from tests.live import saved_pieces
from tests.live.attempts import Story, Wanted, attempt_each, digests_of
from tests.live.ranks import run_ranks
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
    """Each copy in the background begins as late as it may: when the training waits for it."""
    begin, copy, settle = snapshot.Copying.__init__, snapshot.Copying._copy, snapshot.Copying.settle

    def begin_late(copying: Any, *arguments: Any) -> None:
        copying.is_awaited = Event()
        begin(copying, *arguments)

    def copy_late(copying: Any, pairs: Any) -> None:
        # Nobody trains on after the last save, so nobody waits.
        copying.is_awaited.wait(COPY_S)
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
