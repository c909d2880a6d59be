"""A run that moves from one simulated group to the other, again and again, is the run that stayed in one."""

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpointing.stores.local import LocalStore
from cluster.inventory import Inventory, Vendor, WorkerGroup
from jobs.cli.__main__ import main
from jobs.execution.executor import AttemptOrder, Hear, MakeTask
from jobs.execution.outcomes import Outcome
from jobs.launch.inline_executor import InlineExecutor
from jobs.launch.torchrun import LauncherPlace
from jobs.runs import train
from jobs.training.data.synthetic import Batch
from jobs.training.loop import attempt
from jobs.training.step import train_step
from jobs.training.strategies.contract import Engine
from jobs.training.task.stop_request import StopRequest
from reporting.long_runs.reading import one_run
from reporting.long_runs.summarising import long_run
from tests.live.command_line import write_spec
from tests.live.recovery.test_elastic import TOLERANCE, tokens_by_step
from tests.unit.builders import group

SPEC = """
name: r
model: llama-tiny
group: [nvidia, amd]
seq_len: 32
grad_accum: 2
steps: {steps}
data: {{samples: 64}}
optimizer: {{warmup_steps: 5}}
checkpoint: {{every_steps: 3}}
record: {{flush_s: 1, tensorboard: false}}
recovery: {{pause_s: 0}}
"""
SEQUENCES = 2
VENDORS: tuple[Vendor, ...] = ("nvidia", "amd")


@dataclass
class Fleet(InlineExecutor):
    """Two groups, whose devices this process stands in for. The nodes of each are drained after some steps of
    an attempt, ``num_moves`` times in all; those of the other one are back by then.
    """

    num_moves: int
    seed: int = 1

    def __post_init__(self) -> None:
        super().__init__(LauncherPlace(rank=0, world_size=1, local_rank=0))
        self.draws = random.Random(self.seed)
        self.turns: list[str] = []

    def inventory(self) -> Inventory:
        groups = tuple(group(name, (1,), vendor=name, simulated=True) for name in VENDORS)
        return Inventory(groups=groups, source="this test")

    def num_there(self, group: WorkerGroup) -> int:
        return 0

    def attempt(self, order: AttemptOrder, make_task: MakeTask, hear: Hear) -> Outcome:
        left = self.draws.randint(2, 6)
        is_drained = len(self.turns) < self.num_moves
        self.turns.append(order.group.name)

        def drained() -> StopRequest | None:
            nonlocal left
            left -= 1
            is_due = is_drained and left < 0
            return StopRequest(aim="move on", why=f"draining: {order.group.name}-0") if is_due else None

        return super().attempt(replace(order, stop_request=drained), make_task, hear)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A digest of each batch that the model was trained on, in order."""
    found: list[str] = []

    def noted(engine: Engine, batches: Sequence[Batch], *more: Any) -> Tensor:
        found.extend(hashlib.sha256(inputs.numpy().tobytes()).hexdigest() for inputs, *_ in batches)
        return train_step(engine, batches, *more)

    monkeypatch.setattr(attempt, "train_step", noted)
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Else threads of a small model wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(fleet: Fleet, spec: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The attempts set variables for their workers, which this process is.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(train, "choose_executor", lambda *_args, **_settings: fleet)
    assert main(["train", str(spec), "--store", str(store)]) == 0


def losses(store: Path) -> Sequence[float | None]:
    found = long_run(LocalStore(store), "r")
    assert found is not None
    assert found.num_superseded == 0
    return found.losses


@pytest.mark.parametrize("num_moves", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_forced_moves_between_groups_change_nothing_but_where_the_run_is(
    num_moves: int, tmp_path: Path, samples: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, calm = Fleet(num_moves), Fleet(0)
    steps = 7 * num_moves
    spec = write_spec(tmp_path, SPEC.format(steps=steps))
    trained(moving, spec, tmp_path / "moving", monkeypatch)
    read, samples[:] = list(samples), []
    trained(calm, spec, tmp_path / "calm", monkeypatch)

    assert (len(moving.turns), len(calm.turns)) == (num_moves + 1, 1)
    assert all(one != other for one, other in zip(moving.turns, moving.turns[1:], strict=False))
    attempts = one_run(LocalStore(tmp_path / "moving"), "r").attempts.values()
    assert [(one.group, one.vendor, one.simulated) for one in attempts] == [
        (name, name, True) for name in moving.turns
    ]
    assert read == samples
    assert len(read) == SEQUENCES * steps
    per_step = {step: (SEQUENCES * step, SEQUENCES * 32) for step in range(1, steps + 1)}
    assert tokens_by_step(tmp_path / "moving", "r") == per_step
    found, expected = losses(tmp_path / "moving"), losses(tmp_path / "calm")
    assert len(found) == len(expected) == steps
    worst = max(abs(one - other) for one, other in zip(found, expected, strict=True) if one and other)
    print(f"\n{num_moves} moves, {steps} steps, losses within {worst:.1e} (simulated groups)")
    assert worst <= TOLERANCE
