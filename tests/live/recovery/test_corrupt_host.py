"""A host that computes wrongly in silence is left out, and nothing of what it did stays in the run."""

import json
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from cluster.inventory import Inventory, Node, WorkerGroup
from cluster.local_ray.simulated import MixedCluster, mixed_cluster
from jobs.recovery.journal import read_note
from tests.live.attempts import digests_of, newest_manifest
from tests.live.breaking_in import break_in
from tests.live.command_line import run, write_spec
from tests.live.runs.test_train import train_command

DEADLINE_S = 500
QUARTET = Inventory(
    groups=(
        WorkerGroup(
            name="quartet",
            vendor="cpu",
            nodes=tuple(Node(node_id=f"q-{number}", num_devices=1, num_cpus=1) for number in range(4)),
        ),
    ),
    source="this test",
)
SPEC = """
name: r
model: llama-tiny
strategy: ddp
group: quartet
world_size: 3
seq_len: 32
steps: 40
data: {{samples: 96}}
checkpoint: {{every_steps: 5, on_busy: wait, retention: {{last: 20, epochs: false}}}}
record: {{flush_s: 1, tensorboard: false}}
limits: {{schedule_timeout_s: 60}}
recovery: {{pause_s: 0.1}}
guard: {{spike_ratio: null, check_every_steps: 10}}
environment: {{PYTHONPATH: "{folder}"}}
"""
# From step 13 on, the host that had rank 1 in the first attempt has a fault, whichever rank it has later.
FAULTY = """
FILE = {folder!r} + "/faulty-host"

def break_in(module):
    import torch
    work, step = module.run, module.train_step

    def flip(tensor):
        tensor.detach().reshape(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)

    def faulty(task, context, services):
        if context.rank == 1 and task.term == 1:
            open(FILE, "w").write(context.node)
        state["node"] = context.node
        work(task, context, services)

    state = {{}}

    def stepped(engine, *rest):
        number = engine.counters().num_updates
        if number >= 12 and open(FILE).read() == state["node"]:
            {fault}
        return step(engine, *rest)

    module.run, module.train_step = faulty, stepped
"""
FAULTS = {
    "weight": "flip(engine.targets()[0].values)",
    "activation": """if "hook" not in state:
                layer = engine._model.module.model.layers[0].mlp
                state["hook"] = layer.register_forward_hook(lambda *seen: (flip(seen[-1]), seen[-1])[1])""",
    "gradient": """if "hook" not in state:
                weight = engine._model.module.model.layers[0].mlp.up_proj.weight
                state["hook"] = weight.register_hook(lambda grad: (flip(grad), grad)[1])""",
}
SAID = {
    "weight": "holds other weights or moments than the others",
    "activation": "computes other gradients and loss than the others from the same samples",
    "gradient": "computes other gradients than the others from the same samples",
}


@pytest.fixture(scope="module")
def quartet() -> Iterator[MixedCluster]:
    with mixed_cluster(QUARTET) as found:
        yield found


@pytest.fixture(scope="module")
def healthy(quartet: MixedCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run without any fault, which its checks find to be so."""
    folder = tmp_path_factory.mktemp("healthy")
    done = run(
        train_command(write_spec(folder, SPEC.format(folder=folder)), folder / "store"),
        deadline_s=DEADLINE_S,
        **quartet.environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "r: step 0: 3 ranks compute alike" in done.stdout
    assert "corrupt" not in done.stdout
    return folder / "store"


@pytest.mark.parametrize(
    "fault",
    ["weight", *(pytest.param(fault, marks=pytest.mark.soak) for fault in ("activation", "gradient"))],
)
def test_a_host_with_a_flipped_bit_is_left_out_and_the_end_is_that_of_a_healthy_run(
    fault: str, tmp_path: Path, quartet: MixedCluster, healthy: Path
) -> None:
    folder, store = tmp_path / "faulty", tmp_path / "store"
    folder.mkdir()
    break_in(folder, FAULTY.format(folder=str(folder), fault=FAULTS[fault]))
    spec = write_spec(tmp_path, SPEC.format(folder=folder))

    done = run(train_command(spec, store), deadline_s=DEADLINE_S, **quartet.environment)

    assert done.returncode == 0, done.stdout + done.stderr
    note = read_note(LocalStore(store), "r", 1)
    assert note is not None and note.ending is not None
    assert (note.ending.cause, note.ending.ranks) == ("corruption", (1,))
    (faulty,) = note.ending.nodes
    said = f"before step 21: rank 1 (CPU of {gethostname()}) {SAID[fault]}; clean after step 10"
    assert f"r: attempt 1 failed: rank 1: {said}; trying again in 0 s from step 10, without {faulty}" in (
        done.stdout
    )
    assert quarantined(store) == ["000000000015-t1", "000000000020-t1"]
    assert Repository(LocalStore(store), "r").refresh().term == 2
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(healthy, "r"))


def quarantined(store: Path) -> list[str]:
    """Step and term of each: what is quarantined is soon given up, but the log keeps the record."""
    records = [json.loads(path.read_bytes())["body"] for path in (store / "runs" / "r" / "log").iterdir()]
    names = [one["entry"]["name"] for one in records if one["kind"] == "quarantine"]
    return sorted(name.rpartition("-")[0] for name in names)
