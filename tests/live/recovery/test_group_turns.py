"""A run that moves from one simulated group to the other, again and again, is the run that stayed in one."""

import hashlib
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from cluster.cluster_file import read_cluster
from cluster.inventory import Inventory, Node, Vendor, WorkerGroup
from cluster.local_ray.simulated import mixed_cluster, nodes_to_start
from jobs.cli.__main__ import main
from jobs.execution.executor import AttemptOrder, Hear, MakeTask
from jobs.execution.outcomes import Outcome
from jobs.launch.inline_executor import InlineExecutor
from jobs.launch.torchrun import LauncherPlace
from jobs.recovery.journal import read_failed_attempts
from jobs.recovery.world_size import DividedBatch
from jobs.runs import train
from jobs.training.data.synthetic import Batch
from jobs.training.loop import attempt
from jobs.training.step import train_step
from jobs.training.strategies.contract import Engine
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.events import Replayed
from jobs.training.task.job import Strategy
from jobs.training.task.stop_request import StopRequest
from reporting.long_runs.reading import one_run, read_parts
from reporting.long_runs.summarising import long_run
from reporting.long_runs.summary import LongRun
from tests.live.attempts import Wanted, attempt_each, digests_of, newest_manifest
from tests.live.breaking_in import break_in
from tests.live.command_line import ROOT, run, running, write_spec
from tests.live.machines.test_mixed import DEADLINE_S, drain, lose, state_of, wait_until
from tests.live.ranks import run_ranks
from tests.live.recovery.test_elastic import TOLERANCE, tokens_by_step
from tests.live.trainings import recipe_for
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
EVALUATE = NativeEngine.evaluate


@dataclass
class Fleet(InlineExecutor):
    """Two groups, whose devices this process stands in for. The nodes of each are drained after some steps of
    an attempt, ``num_moves`` times in all; those of the other one are back by then.
    """

    num_moves: int
    seed: int = 1
    # Where losses are computed otherwise, by this factor.
    factors: Mapping[str, float] = field(default_factory=dict)

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
        factor = self.factors.get(order.group.name, 1.0)

        def drained() -> StopRequest | None:
            nonlocal left
            left -= 1
            is_due = is_drained and left < 0
            return StopRequest(aim="move on", why=f"draining: {order.group.name}-0") if is_due else None

        def evaluate(engine: NativeEngine, *batch: Tensor) -> Tensor:
            return factor * EVALUATE(engine, *batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NativeEngine, "evaluate", evaluate)
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


def recorded(store: Path) -> LongRun:
    found = long_run(LocalStore(store), "r")
    assert found is not None
    assert found.num_superseded == 0
    return found


def worst_difference(one: LongRun, other: LongRun, *, steps: int) -> float:
    assert len(one.losses) == len(other.losses) == steps
    pairs = [*zip(one.losses, other.losses, strict=True)]
    assert None not in {loss for pair in pairs for loss in pair}
    return max(abs(a - b) for a, b in pairs if a is not None and b is not None)


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
    attempts = [*one_run(LocalStore(tmp_path / "moving"), "r").attempts.values()]
    assert [(one.group, one.vendor, one.simulated) for one in attempts] == [
        (name, name, True) for name in moving.turns
    ]
    assert read == samples
    assert len(read) == SEQUENCES * steps
    per_step = {step: (SEQUENCES * step, SEQUENCES * 32) for step in range(1, steps + 1)}
    assert tokens_by_step(tmp_path / "moving", "r") == per_step
    found = recorded(tmp_path / "moving")
    worst = worst_difference(found, recorded(tmp_path / "calm"), steps=steps)
    print(f"\n{num_moves} moves, {steps} steps, losses within {worst:.1e} (simulated groups)")
    assert worst <= TOLERANCE
    # Each of them was preceded by a look at what the group before had computed.
    groups = {one.term: one.group for one in attempts}
    taken_over = [one for one in attempts if one.parent_term and groups[one.parent_term] != one.group]
    hand_overs = [text for _, kind, text in found.incidents if kind == "replay" and "computes as the" in text]
    assert len(hand_overs) == len(taken_over) > num_moves / 4


def test_a_group_that_computes_otherwise_gets_no_step_and_the_old_one_goes_on(
    tmp_path: Path, samples: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path, SPEC.format(steps=12))
    refused, calm = Fleet(2, factors={"amd": 1.001}), Fleet(0)
    trained(refused, spec, tmp_path / "refused", monkeypatch)
    said = capsys.readouterr().out
    read, samples[:] = list(samples), []
    trained(calm, spec, tmp_path / "calm", monkeypatch)

    assert refused.turns == ["nvidia", "amd", "nvidia"]
    assert re.search(
        r"attempt 2 failed: rank 0: group amd does not compute as the checkpoint of step \d+: the loss of "
        r"the worst batch of 2 is 6\.\d+, and in group nvidia, which saved it, 6\.\d+; expected to agree "
        r"within 0\.0001 of it; trying again in 0 s from step \d+, in group nvidia",
        said,
    )
    saved_by = {one.term for one in Repository(LocalStore(tmp_path / "refused"), "r").refresh().generations}
    assert saved_by == {1, 3}
    assert read == samples
    worst = worst_difference(recorded(tmp_path / "refused"), recorded(tmp_path / "calm"), steps=12)
    assert worst == 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", pytest.param("zero3", marks=pytest.mark.soak)])
def test_losses_that_are_left_change_nothing_and_are_the_same_at_another_world_size(
    strategy: Strategy, tmp_path: Path
) -> None:
    store, batch = tmp_path / "store", DividedBatch(sequences=4, micro_batch=1)

    def wanted(name: str, world_size: int, num_steps: int, **more: Any) -> Wanted:
        recipe = recipe_for(strategy, world_size=world_size, grad_accum=batch.grad_accum(world_size))
        return Wanted(
            name=name, recipe=recipe, num_steps=num_steps, store=store, every_steps=2, eval_every=2, **more
        )

    calm, two = wanted("calm", 2, 4), wanted("r", 2, 4, group="nvidia", may_move=True)
    run_ranks(attempt_each, [calm, two], num_ranks=2, tmp_path=tmp_path)
    left, alone = newest_manifest(store, "r"), newest_manifest(store, "calm")
    (story, *_) = run_ranks(
        attempt_each, [wanted("r", 1, 6, group="amd", may_move=True)], num_ranks=1, tmp_path=tmp_path
    )

    assert digests_of(left) == digests_of(alone)
    assert (len(left.cut.state["hand_over"]["losses"]), "hand_over" in alone.cut.state) == (4, False)
    (found,) = [one for one in story[0].told if isinstance(one, Replayed)]
    assert found.agrees, found.text
    assert newest_manifest(store, "r").cut.state["hand_over"]["group"] == "amd"


def test_a_checkpoint_without_losses_is_gone_on_from_with_a_warning_and_a_single_group_is_only_warned(
    tmp_path: Path,
) -> None:
    def wanted(name: str, num_steps: int, group: str, *, may_move: bool) -> Wanted:
        recipe = recipe_for("ddp", world_size=1)
        return Wanted(
            name=name, recipe=recipe, num_steps=num_steps, store=tmp_path, group=group, may_move=may_move
        )

    stories = run_ranks(
        attempt_each,
        [
            wanted("without", 2, "nvidia", may_move=False),
            wanted("without", 4, "amd", may_move=True),
            wanted("same", 2, "nvidia", may_move=True),
            wanted("same", 4, "nvidia", may_move=True),
            wanted("single", 2, "nvidia", may_move=True),
            wanted("single", 4, "amd", may_move=False),
        ],
        num_ranks=1,
        tmp_path=tmp_path,
    )[0]

    told = [[one for one in story.told if isinstance(one, Replayed)] for story in stories]
    assert [len(found) for found in told] == [0, 1, 0, 0, 0, 1]
    assert (told[1][0].agrees, told[5][0].agrees) == (False, True)
    assert told[1][0].text.endswith("has no losses of the group that saved it: group amd goes on unchecked")
    assert all(story.end.problem is None for story in stories)


PAIR = read_cluster(ROOT / "cluster" / "mixed.yaml")
OVER_RAY = """
name: r
model: llama-tiny
group: [nvidia, amd]
seq_len: 64
grad_accum: 2
steps: 100000
data: {samples: 4096}
optimizer: {warmup_steps: 5}
checkpoint: {every_s: 2}
record: {flush_s: 1, tensorboard: false}
limits: {schedule_timeout_s: 10}
"""


@pytest.mark.soak
def test_over_ray_a_run_leaves_a_drained_group_and_a_lost_one_and_is_the_run_that_stayed(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(tmp_path, OVER_RAY))]
    command += ["--store", str(store)]
    with mixed_cluster(PAIR) as pair:
        with running(command, **pair.environment) as process:
            seen: dict[int, str] = {}
            wait_until(lambda: saved_in(store, seen) == ["nvidia"])
            drain("nvidia-0", pair)
            wait_until(lambda: saved_in(store, seen) == ["nvidia", "amd"])
            wait_until(lambda: state_of("nvidia-0", pair).state == "drained")
            pair.start([node for node in nodes_to_start(PAIR) if node.name == "nvidia-0"])
            lose("amd-0", pair)
            wait_until(lambda: saved_in(store, seen) == ["nvidia", "amd", "nvidia"])
            process.terminate()
            output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
        last = Repository(LocalStore(store), "r").refresh().generations[-1].step
        stayed = ["--run", "calm", "--set", "group=nvidia", "--set", f"steps={last}", "--json"]
        calm = run([*command, *stayed], **pair.environment)
    assert calm.returncode == 0, calm.stderr
    assert output.count("computes as the checkpoint of step") == 2, output
    assert "draining: nvidia-0; trying again in 0 s from step" in output
    moved, expected = (losses_by_step(store, name) for name in ("r", "calm"))
    # A kill takes a second of records with it.
    assert set(moved) <= set(expected) == set(range(1, last + 1))
    worst = max(abs(moved[step] - expected[step]) for step in moved)
    print(f"\n{last} steps, {len(moved)} recorded, losses within {worst:.1e} (simulated groups)")
    assert max(moved) == last
    assert worst <= TOLERANCE


def saved_in(store: Path, seen: dict[int, str]) -> list[str]:
    """The groups that saved, one after the other. ``seen`` keeps those of attempts whose checkpoints are
    deleted by now.
    """
    repository = Repository(LocalStore(store), "r")
    cuts = [repository.manifest(one).cut for one in repository.refresh().generations]
    seen |= {cut.term: cut.state["hand_over"]["group"] for cut in cuts}
    return [name for name, _ in groupby(seen[term] for term in sorted(seen))]


def losses_by_step(store: Path, name: str) -> dict[int, float]:
    parts = one_run(LocalStore(store), name)
    found: dict[int, float] = {}
    for part_name, part in read_parts(LocalStore(store), parts.of("steps"), []):
        limit = parts.counted_until.get(part_name.term, 0)
        for step, loss in zip(part.column("step").to_pylist(), part.column("loss").to_pylist(), strict=True):
            if loss is not None and (limit is None or step <= limit):
                found[step] = loss
    return found


TWINS = Inventory(
    groups=tuple(
        WorkerGroup(name=name, vendor="cpu", nodes=(Node(node_id=f"{name}-0", num_devices=2, num_cpus=2),))
        for name in VENDORS
    ),
    source="this test",
)
# In group amd a library computes losses otherwise.
FAULTY = """
def break_in(module):
    work = module.run
    def faulty(task, context, services):
        from jobs.training.strategies.native import NativeEngine
        evaluate, factor = NativeEngine.evaluate, 1.01 if task.group == "amd" else 1.0
        NativeEngine.evaluate = lambda engine, *batch: factor * evaluate(engine, *batch)
        try:
            work(task, context, services)
        finally:
            NativeEngine.evaluate = evaluate
    module.run = faulty
"""


@pytest.mark.soak
def test_over_ray_a_refused_move_is_told_with_both_figures_and_the_old_group_is_waited_for(
    tmp_path: Path,
) -> None:
    folder, store = tmp_path / "faulty", tmp_path / "store"
    folder.mkdir()
    break_in(folder, FAULTY)
    text = f'{OVER_RAY}world_size: 2\nstrategy: fsdp\nenvironment: {{PYTHONPATH: "{folder}"}}\n'
    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(tmp_path, text))]
    command += ["--store", str(store), "--set", "recovery.pause_s=0.1"]
    seen: dict[int, str] = {}
    with mixed_cluster(TWINS) as twins, running(command, **twins.environment) as process:
        wait_until(lambda: saved_in(store, seen) == ["nvidia"])
        drain("nvidia-0", twins)
        wait_until(lambda: "hand-over" in causes(store))
        twins.start([node for node in nodes_to_start(TWINS) if node.name == "nvidia-0"])
        wait_until(lambda: saved_in(store, seen) == ["nvidia"] and len(seen) == 2)
        found = causes(store)
        process.terminate()
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert set(seen.values()) == {"nvidia"}
    assert "ranks 0, 1: group amd does not compute as the checkpoint of step" in output, output
    assert found.count("hand-over") == 1


def causes(store: Path) -> list[str]:
    places = LocalStore(store)
    return [one.cause for one in read_failed_attempts(places, "r", Repository(places, "r").refresh())]
