"""What a training on hosts does after something happened, and what its state is held against."""

import sys
from pathlib import Path

import pytest

from tests.hosts import Host, wait_until
from tests.hosts_tier.clusters import GROUP, TRAINING, Cluster, Training
from tests.hosts_tier.faults import Fault
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import DEADLINE_S, run

# They only bound: a machine with other work takes its time.
START_S = RECOVERY_S = 300.0
END_S = 180.0
# So many steps are to be done, and saved, between two faults.
MORE = 40
# As for any run that goes on at another size.
TOLERANCE = 1e-5

SPEC = f"""
name: r
model: llama-tiny
strategy: ddp
world_size: 2
group: {GROUP}
spread: true
seq_len: 32
steps: 1000000
data: {{samples: 4096}}
checkpoint: {{every_steps: 20, deadline_s: 10, retention: {{last: 3, epochs: false}}}}
record: {{flush_s: 1, tensorboard: false}}
limits: {{schedule_timeout_s: 60}}
"""


def goes_on(cluster: Cluster, training: Training, fault: Fault, *, num_ranks: int = 2) -> Host | None:
    """After the fault another attempt does so many steps, without the host that was struck: this one."""
    before = training.attempt()
    struck = fault(cluster)
    gets_on(training, before)
    if struck is not None:
        others = hosts_of(cluster, without=struck)
        assert len(others) == num_ranks, f"{others}, without {struck.name}: {training.log()[-20_000:]}"
    return struck


def gets_on(training: Training, before: int) -> None:
    """An attempt later than number ``before`` does so many steps."""
    training.wait_until(lambda: training.attempt() > before, RECOVERY_S, f"an attempt after {before}")
    training.wait_for_step(training.newest_step() + MORE, RECOVERY_S)


def hosts_of(cluster: Cluster, *, without: Host) -> set[str]:
    """That train; on one that was struck may be what nobody reaches any more."""
    return {host.name for host, _ in cluster.training_workers() if host is not without}


def heals(host: Host) -> None:
    """Its link. What went on in silence is gone when it returns; into the cluster it comes a little later."""
    host.heal()
    wait_until(lambda: not host.processes(TRAINING), RECOVERY_S, f"{host.name}: its workers")


def assert_as_left_alone(
    training: Training, spec: Path, folder: Path, *, deadline_s: float = DEADLINE_S
) -> None:
    """Its newest save is that of a run which nothing happened to, to the bit."""
    _leave_alone(training, spec, folder, deadline_s)
    assert digests_of(newest_manifest(Path(training.store), "r")) == digests_of(newest_manifest(folder, "r"))


def assert_losses_as_left_alone(training: Training, spec: Path, folder: Path) -> None:
    """And as many samples, where sums were made in another order at another number of ranks."""
    _leave_alone(training, spec, folder)
    ours, alone = (newest_manifest(store, "r").cut for store in (Path(training.store), folder))
    assert ours.state["position"] == alone.state["position"]
    assert ours.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=TOLERANCE)


def _leave_alone(training: Training, spec: Path, folder: Path, deadline_s: float = DEADLINE_S) -> None:
    """The same run up to the same step, with ranks that nothing happens to."""
    step = training.newest_step()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    alone = ["-m", "jobs.cli", "train", str(spec), "--store", str(folder), "--set", f"steps={step}"]
    command = [*torchrun, *alone, "--set", "group=local"]
    done = run(command, deadline_s=deadline_s, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
