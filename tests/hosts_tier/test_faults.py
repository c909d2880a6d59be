"""A real ``longhaul train`` over several hosts, to which everything happens that happens to hosts.

Whatever happened, the state is bit by bit the one of a run that was left alone.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest

from checkpointing.repository import Repository
from checkpointing.store import LocalStore
from tests.hosts import Host, hosts_on, wait_until, why_not
from tests.hosts_tier.clusters import (
    GROUP,
    LONGHAUL,
    Cluster,
    Training,
    start_objects,
    times_started,
    wait_until_started,
)
from tests.live.attempts import digests_of, newest_manifest
from tests.live.commands import run, write_spec
from tests.live.servers import BUCKET

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
# They only bound: a machine with other work takes its time.
START_S = RECOVERY_S = 300.0
SILENT_S = 30.0
SPARE_LATE_S = 20.0
END_S = 180.0
# So many steps are to be done, and saved, between two faults.
MORE = 40

Fault = Callable[[Cluster], Host | None]

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
checkpoint: {{every_steps: 20, retention: {{last: 3, epochs: false}}}}
record: {{flush_s: 1, tensorboard: false}}
limits: {{schedule_timeout_s: 60}}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two hosts to train on, and a spare one."""
    with hosts_on(tmp_path / "hosts") as lan:
        found = Cluster(lan=lan)
        found.start(num_workers=3)
        yield found


def a_process_is_killed(cluster: Cluster) -> Host | None:
    cluster.training_workers()[0][1].kill()
    return None


def a_host_loses_power(cluster: Cluster) -> Host:
    host, _ = cluster.training_workers()[0]
    host.power_off()
    return host


def a_host_falls_silent(cluster: Cluster) -> Host:
    host, _ = cluster.training_workers()[0]
    host.cut()
    return host


def a_node_is_drained(cluster: Cluster) -> Host:
    host, _ = cluster.training_workers()[0]
    node_id = node_ids(cluster)[host.address]
    why = [
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=test",
        "--deadline-remaining-seconds=20",
    ]
    drain = ["ray", "drain-node", f"--address={cluster.address}", f"--node-id={node_id}", *why]
    cluster.head.run(drain, deadline_s=START_S)
    return host


def the_driver_is_killed(cluster: Cluster) -> None:
    """Which its keeper has started."""
    found = cluster.head.processes("jobs.cli train")
    (driver,) = (process for process in found if "--keep" not in process.cmdline())
    driver.kill()


def node_ids(cluster: Cluster) -> dict[str, str]:
    """By address, of those that are alive."""
    program = (
        "import json, ray; ray.init(log_to_driver=False, logging_level='ERROR'); "
        "print(json.dumps({n['NodeManagerAddress']: n['NodeID'] for n in ray.nodes() if n['Alive']}))"
    )
    told = cluster.head.run([sys.executable, "-c", program], deadline_s=START_S, RAY_ADDRESS=cluster.address)
    found: dict[str, str] = json.loads(told.splitlines()[-1])
    return found


def goes_on(cluster: Cluster, training: Training, fault: Fault) -> Host | None:
    """After the fault it does more steps than it had, without the host that was struck; which that was."""
    before = training.newest_step()
    struck = fault(cluster)
    if struck is not None:
        wait_until(lambda: trains_without(cluster, struck), RECOVERY_S, f"leaving {struck.name}")
    training.wait_for_step(before + MORE, RECOVERY_S)
    return struck


def trains_without(cluster: Cluster, struck: Host) -> bool:
    """On the struck host may be what nobody reaches any more."""
    return len({host.name for host, _ in cluster.training_workers() if host is not struck}) == 2


def comes_back(host: Host) -> None:
    before = times_started(host)
    host.heal()
    wait_until_started(host, before + 1)


def assert_as_left_alone(store: Path, spec: Path, folder: Path) -> None:
    """Its newest save beside that of a run which nothing happened to, up to the same step."""
    step = max(found.step for found in Repository(LocalStore(store), "r").refresh().generations)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    alone = ["-m", "jobs.cli", "train", str(spec), "--store", str(folder), "--set", f"steps={step}"]
    done = run([*torchrun, *alone, "--set", "group=local"], OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(folder, "r"))


@pytest.mark.soak
def test_a_run_to_which_one_thing_after_the_other_happens_is_the_run_that_was_left_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec, store = write_spec(tmp_path, SPEC), tmp_path / "store"
    training = Training(cluster, spec, store, "--keep")
    training.wait_for_step(MORE, START_S)
    goes_on(cluster, training, a_process_is_killed)
    goes_on(cluster, training, a_host_loses_power)
    cluster.add("spare")
    silent = goes_on(cluster, training, a_host_falls_silent)
    assert silent is not None
    comes_back(silent)
    goes_on(cluster, training, a_node_is_drained)
    goes_on(cluster, training, the_driver_is_killed)
    cluster.head.run([*LONGHAUL, "stop", "r", "--store", str(store)], deadline_s=END_S)
    assert training.end(END_S) == 0, training.says()
    assert_as_left_alone(store, spec, tmp_path / "alone")


@pytest.mark.soak
def test_a_store_that_is_silent_for_half_a_minute_stops_no_training(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SPEC)
    with hosts_on(tmp_path / "hosts") as lan:
        objects, keys = start_objects(lan)
        cluster = Cluster(lan=lan, keys=keys)
        cluster.start(num_workers=2)
        training = Training(cluster, spec, f"s3://{BUCKET}/store")
        training.wait_for_step(MORE, START_S)
        before = training.status()
        objects.cut()
        sleep(SILENT_S)
        objects.heal()
        training.wait_for_step(before["step"] + MORE, RECOVERY_S)
        after = training.status()
        cluster.head.run(
            [*LONGHAUL, "stop", "r", "--store", f"s3://{BUCKET}/store"], deadline_s=END_S, **keys
        )
        assert training.end(END_S) == 0, training.says()
    assert after["attempts"] == before["attempts"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("fault", [a_host_loses_power, a_host_falls_silent])
@pytest.mark.parametrize("rest", ["spare late", "link heals"])
def test_a_run_without_a_spare_waits_until_there_is_a_host_again(
    fault: Fault, rest: str, tmp_path: Path
) -> None:
    spec, store = write_spec(tmp_path, SPEC), tmp_path / "store"
    with hosts_on(tmp_path / "hosts") as lan:
        cluster = Cluster(lan=lan)
        cluster.start(num_workers=2)
        training = Training(cluster, spec, store)
        training.wait_for_step(MORE, START_S)
        before = training.newest_step()
        struck = fault(cluster)
        assert struck is not None
        sleep(SPARE_LATE_S)
        if rest == "spare late" or fault is a_host_loses_power:
            cluster.add("spare")
        else:
            comes_back(struck)
        training.wait_for_step(before + MORE, RECOVERY_S)
        cluster.head.run([*LONGHAUL, "stop", "r", "--store", str(store)], deadline_s=END_S)
        assert training.end(END_S) == 0, training.says()
    assert_as_left_alone(store, spec, tmp_path / "alone")
