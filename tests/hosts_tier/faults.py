"""What happens to a cluster with a training on it. Each returns the host that is struck, if one is."""

from collections.abc import Callable

import psutil

from tests.hosts import Host
from tests.hosts_tier.clusters import Cluster, times_started, wait_until_started

_DEADLINE_S = 120.0
_DRAIN_S = 10

Fault = Callable[[Cluster], Host | None]


def a_worker_process_is_killed(cluster: Cluster) -> None:
    _, process = cluster.training_workers()[0]
    process.kill()


def a_worker_dies_on(host: Host) -> Fault:
    """Once more: a host that it keeps happening to is as good as struck."""

    def dies(cluster: Cluster) -> Host:
        (process,) = (process for found, process in cluster.training_workers() if found is host)
        process.kill()
        return host

    return dies


def a_host_loses_power(cluster: Cluster) -> Host:
    host, _ = cluster.training_workers()[0]
    host.power_off()
    return host


def a_host_falls_silent(cluster: Cluster) -> Host:
    host, _ = cluster.training_workers()[0]
    host.cut()
    return host


def a_host_is_drained(cluster: Cluster) -> Host:
    """As by a cloud that wants it back: soon it is gone."""
    host, _ = cluster.training_workers()[0]
    why = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test"]
    node = [f"--node-id={_node_id(host)}", f"--deadline-remaining-seconds={_DRAIN_S}"]
    drain = ["ray", "drain-node", f"--address={cluster.address}", *node, *why]
    cluster.head.run(drain, deadline_s=_DEADLINE_S)
    return host


def a_raylet_is_killed(cluster: Cluster) -> Host:
    """Which the host's start script brings back."""
    host, _ = cluster.training_workers()[0]
    raylet_on(host).kill()
    return host


def raylet_on(host: Host) -> psutil.Process:
    (raylet,) = (process for process in host.processes("raylet") if process.name() == "raylet")
    return raylet


def the_controller_is_killed(cluster: Cluster) -> None:
    """Of the attempt that goes on, not one of an attempt before that is about to end."""
    _only(cluster.head, "ray::TrainController.run").kill()


def the_driver_is_killed(cluster: Cluster) -> None:
    driver_of(cluster).kill()


def driver_of(cluster: Cluster) -> psutil.Process:
    """Which its supervisor has started, as a process of its own or as a job."""
    found = [*cluster.head.processes("jobs.cli train"), *cluster.head.processes("jobs/train.py")]
    (driver,) = (one for one in found if "python" in one.name() and "--keep" not in one.cmdline())
    return driver


def the_job_supervisor_is_killed(cluster: Cluster) -> None:
    _only(cluster.head, "JobSupervisor").kill()


def the_heads_ray_is_killed(cluster: Cluster) -> None:
    """All of it ends then, and is started again."""
    before = times_started(cluster.head)
    _only(cluster.head, "gcs_server").kill()
    wait_until_started(cluster.head, before + 1)


def the_head_loses_power(cluster: Cluster) -> None:
    cluster.head.power_off()
    cluster.head.power_on()
    cluster.start_head()


def _only(host: Host, words: str) -> psutil.Process:
    (found,) = host.processes(words)
    return found


def _node_id(host: Host) -> str:
    """Ray's, as its raylet was told."""
    words = _only(host, "--node_id=").cmdline()
    (found,) = (word for word in words if word.startswith("--node_id="))
    return found.removeprefix("--node_id=")
