"""Saves that are copied while the next step computes are those that were copied before it: to the bit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.saving import snapshot
from checkpointing.stores.opening import open_store
from tests.live.attempts import Story, Wanted, attempt_each, digests_of
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES, recipe_for

NUM_STEPS = 2
# Longer than forward and backward pass of these steps.
COPY_S = 0.4


@contextmanager
def slow_copies() -> Iterator[None]:
    """Each copy in the background begins so late that a step which does not wait for it comes first."""
    copy = snapshot.Copying._copy

    def slowly(copying: Any, pairs: Any) -> None:
        time.sleep(COPY_S)
        copy(copying, pairs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot.Copying, "_copy", slowly)
        yield


def attempts_with_slow_copies(wanted: list[Wanted]) -> list[Story]:
    """Runs on a rank."""
    with slow_copies():
        return attempt_each(wanted)


def wanted_of(strategy: str, store: Path, **more: Any) -> Wanted:
    return Wanted(
        name=strategy,
        recipe=recipe_for(strategy, world_size=2, **more),
        num_steps=NUM_STEPS,
        store=store,
        every_steps=1,
    )


def saved_in(store: Path, run: str) -> list[tuple[int, list[tuple[str, ...]]]]:
    repository = Repository(open_store(str(store)), run)
    found = repository.refresh().generations
    return [(one.step, digests_of(repository.manifest(one))) for one in found]


def test_under_every_strategy_each_generation_is_the_same_to_the_bit(tmp_path: Path) -> None:
    at_once = [wanted_of(strategy, tmp_path / "at-once") for strategy in STRATEGIES]
    lazily = [replace(one, store=tmp_path / "lazily", copies_lazily=True) for one in at_once]
    stories = run_ranks(
        attempts_with_slow_copies, [*at_once, *lazily], num_ranks=2, tmp_path=tmp_path, deadline_s=240
    )[0]
    for one, other in zip(at_once, lazily, strict=True):
        expected = saved_in(one.store, one.name)
        assert [step for step, _ in expected] == [1, 2]
        assert saved_in(other.store, other.name) == expected, one.name
    assert not [note for story in stories for note in story.saves if note.problem]
    # What was copied lazily says how long the next update waited for it.
    waits = [
        note.blocked_s for story in stories[len(at_once) :] for note in story.saves if note.step < NUM_STEPS
    ]
    assert len(waits) == len(STRATEGIES) * (NUM_STEPS - 1)
    assert min(waits) > 0
