"""A run that was resumed does a step again, and says how its loss compares with the recorded one."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from jobs.training.loop import attempt as loop
from jobs.training.loop.replay import Replay
from jobs.training.step import train_step
from jobs.training.task.events import Replayed
from reporting.long_runs.reading import one_run, read_parts
from tests.live.attempts import Story, Wanted, attempt
from tests.live.trainings import recipe_for


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Awaited(Replay):
    """Keeps a training of a few steps from ending before it is told: others do not wait for the store."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        task, step, term, end, tell = args
        self._is_told = threading.Event()

        def tell_and_note(found: Replayed) -> None:
            tell(found)
            self._is_told.set()

        super().__init__(task, step, term, end, tell_and_note, **settings)

    def close(self) -> None:
        assert self._is_told.wait(600), "nothing was told"
        super().close()


def told(story: Story) -> list[Replayed]:
    return [one for one in story.told if isinstance(one, Replayed)]


def incidents(store: Path) -> list[tuple[str, int]]:
    """Of kinds that tell of a replay: kind and step."""
    places = LocalStore(store)
    parts = read_parts(places, one_run(places, "r").of("incidents"), [])
    rows = [row for _, part in parts for row in part.to_pylist()]
    return [(row["kind"], row["step"]) for row in rows if row["kind"] in ("replay", "warning")]


def test_a_resume_says_whether_the_step_that_it_does_again_has_its_loss(
    tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Replay", Awaited)
    wanted = Wanted(
        name="r", recipe=recipe_for("ddp", world_size=1), num_steps=4, store=tmp_path, every_steps=2
    )
    # Nothing was done before.
    assert told(attempt(wanted)) == []
    saved = Repository(open_store(str(tmp_path)), "r").refresh().generations[0]
    # The update that another learning rate changes comes after the loss.
    optimizer = replace(wanted.recipe.optimizer, lr=3 * wanted.recipe.optimizer.lr)
    again = Wanted(
        name="r",
        recipe=replace(wanted.recipe, optimizer=optimizer),
        num_steps=6,
        store=tmp_path,
        every_steps=100,
        resume=saved.name,
    )

    (found,) = told(attempt(again))

    assert (saved.step, found.step, found.agrees) == (2, 3, True)
    assert "agrees to the bit" in found.text
    assert incidents(tmp_path) == [("replay", 3)]

    def otherwise(*args: object) -> Tensor:
        return train_step(*args) * 1.0001  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(loop, "train_step", otherwise)

    (found,) = told(attempt(again))

    assert (found.step, found.agrees) == (3, False)
    assert "expected to agree to the bit" in found.text
    assert incidents(tmp_path) == [("replay", 3), ("warning", 3)]
