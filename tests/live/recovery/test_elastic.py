"""A run that goes on smaller and larger is the run that did not: the same losses, each sample once."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation
from checkpointing.stores.local import LocalStore
from cluster.inventory import Inventory, Node, WorkerGroup
from cluster.local_ray.simulated import MixedCluster, mixed_cluster, nodes_to_start
from jobs.recovery.world_size import DividedBatch
from reporting.long_runs.reading import one_run, read_parts
from reporting.long_runs.summarising import long_run
from tests.live.attempts import Wanted, attempt_each
from tests.live.command_line import run, running, write_spec
from tests.live.machines.test_mixed import DEADLINE_S, lose, state_of, wait_until
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for

TOLERANCE = 1e-5
BATCH = DividedBatch(sequences=4, micro_batch=1)


def wanted(name: str, store: Path, *, world_size: int, num_steps: int) -> Wanted:
    recipe = recipe_for("fsdp", world_size=world_size, grad_accum=BATCH.grad_accum(world_size))
    return Wanted(name=name, recipe=recipe, num_steps=num_steps, store=store, every_steps=1, eval_every=1)


def generations(store: Path, name: str) -> list[Generation]:
    return list(Repository(LocalStore(store), name).refresh().generations)


def metrics_of(store: Path, name: str) -> dict[int, dict[str, float]]:
    """By step, of all that was saved: losses are means over all samples of the step, or held out."""
    return {found.step: dict(found.metrics) for found in generations(store, name)}


def worst_difference(one: dict[int, dict[str, float]], other: dict[int, dict[str, float]]) -> float:
    """Of what both have; where a run was asked to stop nothing was evaluated."""
    both = [(step, name) for step in one for name in one[step] if name in other.get(step, {})]
    assert both
    return max(abs(one[step][name] - other[step][name]) for step, name in both)


def tokens_by_step(store: Path, name: str) -> dict[int, tuple[int, int]]:
    """Of the steps that count: the samples that were consumed by then, and the tokens of all ranks."""
    parts = one_run(LocalStore(store), name)
    found: dict[int, tuple[int, int]] = {}
    for part_name, part in read_parts(LocalStore(store), parts.of("steps"), []):
        limit = parts.counted_until.get(part_name.term, 0)
        columns = [part.column(key).to_pylist() for key in ("step", "position", "tokens")]
        for step, position, tokens in zip(*columns, strict=True):
            if limit is None or step <= limit:
                found[step] = (position, found.get(step, (0, 0))[1] + tokens)
    return found


def test_two_ranks_then_one_then_two_have_the_losses_and_the_samples_of_two(tmp_path: Path) -> None:
    store = tmp_path / "store"
    calm = wanted("calm", store, world_size=2, num_steps=9)
    resized = [
        wanted("resized", store, world_size=size, num_steps=until) for size, until in ((2, 3), (1, 6), (2, 9))
    ]
    run_ranks(attempt_each, [calm, resized[0]], num_ranks=2, tmp_path=tmp_path)
    run_ranks(attempt_each, [resized[1]], num_ranks=1, tmp_path=tmp_path)
    (story, _) = run_ranks(attempt_each, [resized[2]], num_ranks=2, tmp_path=tmp_path)

    assert (story[0].start.step, story[0].end.step) == (6, 9)
    expected, found = metrics_of(store, "calm"), metrics_of(store, "resized")
    assert set(found) == set(expected) == set(range(1, 10))
    assert worst_difference(expected, found) <= TOLERANCE
    # Three epochs and more of 24 samples in two of each size; every step has the tokens of four of them.
    assert tokens_by_step(store, "resized") == {step: (4 * step, 4 * 32) for step in range(1, 10)}


PAIR = Inventory(
    groups=(
        WorkerGroup(
            name="pair",
            vendor="cpu",
            nodes=tuple(Node(node_id=f"pair-{number}", num_devices=1, num_cpus=1) for number in (0, 1)),
        ),
    ),
    source="this test",
)
# Longer than anybody waits for it.
SPEC = """
name: r
model: llama-tiny
strategy: fsdp
group: pair
world_size: {min: 1, max: 2}
elastic: {wait_for_spare_s: 1, grow_after_s: 2}
seq_len: 64
grad_accum: 2
steps: 100000
data: {samples: 4096}
optimizer: {warmup_steps: 5}
eval: {every_steps: 10, samples: 4}
record: {flush_s: 1, tensorboard: false}
limits: {schedule_timeout_s: 60}
"""
SEQUENCES = 4


@pytest.fixture
def pair() -> Iterator[MixedCluster]:
    with mixed_cluster(PAIR) as found:
        yield found


@pytest.mark.soak
def test_a_run_that_loses_a_node_goes_on_without_it_and_grows_when_it_is_back(
    tmp_path: Path, pair: MixedCluster
) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(tmp_path, SPEC))]
    command += ["--store", str(store)]
    with running(command, **pair.environment) as process:
        wait_until(lambda: newest_size(store, "r") == 2)
        lose("pair-1", pair)
        wait_until(lambda: newest_size(store, "r") == 1)
        assert state_of("pair-1", pair).state == "lost"
        pair.start([node for node in nodes_to_start(PAIR) if node.name == "pair-1"])
        wait_until(lambda: newest_size(store, "r") == 2)
        process.terminate()
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert "goes on with 1 rank instead of 2" in output
    assert "there is room for 2 ranks" in output

    last = generations(store, "r")[-1].step
    fixed = ["--run", "calm", "--set", "world_size=2", "--set", f"steps={last}", "--json"]
    calm = run([*command, *fixed], **pair.environment)
    assert calm.returncode == 0, calm.stderr
    assert json.loads(calm.stdout)["step"] == last
    resized, undisturbed = val_losses(store, "r"), val_losses(store, "calm")
    # A kill takes a second of records with it.
    assert set(resized) <= set(undisturbed) == set(range(10, last + 1, 10))
    assert len(resized) >= len(undisturbed) / 2
    worst = max(abs(resized[step] - undisturbed[step]) for step in resized)
    worst = max(worst, worst_difference(metrics_of(store, "r"), metrics_of(store, "calm")))
    assert worst <= TOLERANCE
    print(f"\n{last} steps, {len(resized)} evaluations, within {worst:.1e}")
    assert positions(store, "r") == {found.step: SEQUENCES * found.step for found in generations(store, "r")}


def newest_size(store: Path, name: str) -> int | None:
    """The world size that left the newest checkpoint."""
    repository = Repository(LocalStore(store), name)
    found = repository.refresh().generations
    return repository.manifest(found[-1]).cut.world_size if found else None


def positions(store: Path, name: str) -> dict[int, int]:
    repository = Repository(LocalStore(store), name)
    cuts = [repository.manifest(found).cut for found in repository.refresh().generations]
    return {cut.step: cut.state["position"] for cut in cuts}


def val_losses(store: Path, name: str) -> dict[int, float]:
    found = long_run(LocalStore(store), name)
    assert found is not None
    return dict(zip(found.val_steps, found.val_losses, strict=True))
