"""A long run on a late device: its loop never lets the device run dry, and its results are the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from jobs.training.health.failures import InvalidLoss
from jobs.training.loop import attempt as loop
from jobs.training.loop.progress_reports import ProgressReporter
from jobs.training.models.decoder import Decoder
from jobs.training.strategies.contract import Engine
from jobs.training.strategies.ddp import whole
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.job import Recipe
from reporting.long_runs.reading import one_run, read_parts
from tests.live.attempts import Wanted, attempt, digests_of, newest_manifest
from tests.live.late_device import LATE, LateDevice
from tests.live.trainings import recipe_for


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass(kw_only=True)
class Poison:
    """The step of which the loss is not a number."""

    step: int = 0


def engine_on(late: LateDevice, recipe: Recipe, poison: Poison) -> Engine:
    """The engine of ddp without torch's wrapper, which reduces in C++, around a model with few kernels."""
    torch.manual_seed(recipe.seed)
    model = _Model(recipe.model.vocab_size)
    for module in (model.embedding, model.head):
        module.weight = Parameter(late.tensor(module.weight))
    return _Poisoned(model, recipe, poison)


class _Model(Decoder):
    def __init__(self, vocab_size: int) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Embedding(vocab_size, 4)
        self.head = nn.Linear(4, vocab_size, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.head(self.embedding(ids)).flatten(0, 1), labels.flatten())


class _Poisoned(NativeEngine):
    def __init__(self, model: nn.Module, recipe: Recipe, poison: Poison) -> None:
        super().__init__(
            model,
            recipe,
            lambda parameter, rank: whole(parameter),
            whole,
            unreduced=lambda *_: nullcontext(),
            holds=(),
        )
        self._poison, self._step = poison, 1

    def accumulate(self, *batch: Tensor, last: bool, weight: float = 1.0) -> Tensor:
        is_bad = self._step == self._poison.step
        return super().accumulate(*batch, last=last, weight=float("nan") if is_bad else weight)

    def update(self) -> None:
        super().update()
        self._step += 1


@contextmanager
def running_on(late: LateDevice, poison: Poison | None = None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, late.present():
        late.stand_in(patch)
        # A report needs the newest loss, and is due whenever the clock says so.
        patch.setattr(ProgressReporter, "is_report_due", lambda reporter: False)
        patch.setattr(loop, "build", lambda recipe, device: engine_on(late, recipe, poison or Poison()))
        yield


def wanted(store: Path, num_steps: int) -> Wanted:
    return Wanted(
        name="r",
        recipe=recipe_for("ddp", world_size=1),
        num_steps=num_steps,
        store=store,
        every_steps=100,
        device=LATE,
        vendor="nvidia",
    )


def told(store: Path, late: LateDevice, num_steps: int) -> tuple[list[Any], list[tuple[str, ...]]]:
    """What was recorded of each step, and what was saved at the end."""
    with running_on(late):
        attempt(wanted(store, num_steps))
    return recorded(store), digests_of(newest_manifest(store, "r"))


def recorded(store: Path) -> list[Any]:
    """Of each step its loss and its gradient's norm."""
    places, problems = LocalStore(store), list[str]()
    parts = read_parts(places, one_run(places, "r").of("steps"), problems)
    rows = [row for _, part in parts for row in part.to_pylist()]
    assert not problems
    return [(row["step"], row["loss"], row["grad_norm"]) for row in rows]


class Prompt(LateDevice):
    """Does everything as soon as it is launched."""

    def enqueue(self, work: Callable[[], None]) -> None:
        super().enqueue(work)
        self.work(lambda: True, None)


def test_between_saves_no_step_waits_for_all_of_the_device_or_lets_it_run_dry(tmp_path: Path) -> None:
    waits = []
    for num_steps in (3, 9):
        late = LateDevice(num_steps)
        told(tmp_path / str(num_steps), late, num_steps)
        waits.append((late.waits, late.starved, late.unpinned))
        # The loss and the gradient's norm of each step that is followed by another.
        assert late.events_waited_for >= 2 * (num_steps - 1)
    assert waits[0] == waits[1]


def test_records_and_saves_are_those_of_a_device_that_is_never_late(tmp_path: Path) -> None:
    prompt = told(tmp_path / "prompt", Prompt(0), 5)
    assert [step for step, *_ in prompt[0]] == [1, 2, 3, 4, 5]
    for seed in range(2):
        assert told(tmp_path / str(seed), LateDevice(seed), 5) == prompt


def test_a_run_that_is_resumed_on_a_late_device_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    records, saved = told(tmp_path / "whole", Prompt(0), 6)
    for seed in range(2):
        told(tmp_path / str(seed), LateDevice(seed), 3)
        assert told(tmp_path / str(seed), LateDevice(seed + 2), 6) == (records, saved)


def test_a_loss_that_is_no_number_ends_the_run_two_steps_later_and_is_named(tmp_path: Path) -> None:
    late = LateDevice(0)
    with running_on(late, Poison(step=2)), pytest.raises(InvalidLoss) as caught:
        attempt(wanted(tmp_path, 9))
    assert caught.value.bad_loss is not None
    assert (caught.value.bad_loss.step, caught.value.bad_loss.good_step) == (2, 1)
    assert not Repository(open_store(str(tmp_path)), "r").refresh().generations
