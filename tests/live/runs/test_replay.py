"""A run that was resumed does a step again, and says how its loss compares with the recorded one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import Tensor

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from checkpointing.stores.opening import open_store
from jobs.training.loop import attempt as loop
from jobs.training.loop.replay import compared, recorded_loss
from jobs.training.step import train_step
from jobs.training.task.events import Replayed
from reporting.long_runs.reading import one_run, read_parts
from tests.live.attempts import Story, Wanted, attempt
from tests.live.trainings import recipe_for
from tests.unit import recorded


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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
    wanted = Wanted(
        name="r", recipe=recipe_for("ddp", world_size=1), num_steps=4, store=tmp_path, every_steps=2
    )
    # Nothing was done before.
    assert told(attempt(wanted)) == []
    saved = Repository(open_store(str(tmp_path)), "r").refresh().generations[0]
    again = Wanted(
        name="r",
        recipe=wanted.recipe,
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


@pytest.mark.parametrize(
    ("before", "now", "relative", "agrees"),
    [
        (2.0, 2.0, 0.0, True),
        (2.0, 2.0 + 2.0**-30, 0.0, True),  # as exactly as losses are told
        (2.0, 2.0 + 2.0**-28, 0.0, False),
        (2.0, 2.00019, 1e-4, True),
        (2.0, 1.99979, 1e-4, False),
    ],
)
def test_losses_agree_by_no_more_than_the_bound(
    before: float, now: float, relative: float, agrees: bool
) -> None:
    assert compared(7, before, now, relative=relative).agrees is agrees


class Counting(MemoryStore):
    num_read = 0

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self.num_read += name.endswith(".parquet")
        return super().get_range(name, start, into)


def store_of(*attempts: tuple[int, range, float | None]) -> Counting:
    """Steps by term, ten a part, with this loss; the position is the step."""
    store = Counting()
    for term, steps, loss in attempts:
        of = recorded.attempt(term=term, start_step=steps[0] - 1)
        for number, first in enumerate(range(steps[0], steps[-1] + 1, 10), start=1):
            rows = [recorded.step_row(step, loss=loss) for step in steps if first <= step < first + 10]
            recorded.leave(store, of, "steps", rows, number=number)
    return store


def test_the_newest_attempt_that_did_the_step_tells_its_loss() -> None:
    store = store_of((1, range(1, 41), 1.0), (2, range(21, 41), 2.0), (3, range(31, 36), 3.0))
    for step, terms, expected in (
        (33, range(1, 4), 3.0),
        (33, range(1, 3), 2.0),
        (38, range(1, 4), 2.0),
        (12, range(1, 4), 1.0),
        (12, range(2, 4), None),
        (41, range(1, 4), None),
    ):
        assert recorded_loss(store, "r", terms, step, step) == expected, (step, terms)


def test_of_other_samples_or_without_a_loss_nothing_is_known() -> None:
    store = store_of((1, range(1, 5), 1.0), (2, range(1, 5), None))
    assert recorded_loss(store, "r", range(1, 2), 3, 4) is None
    assert recorded_loss(store, "r", range(2, 3), 3, 3) is None
    assert recorded_loss(store, "r", range(1, 3), 3, 3) == 1.0


def test_of_very_many_parts_few_are_read() -> None:
    store = store_of((1, range(1, 5001), 1.0))
    assert recorded_loss(store, "r", range(1, 2), 3333, 3333) == 1.0
    assert 0 < store.num_read <= 10
