"""``cluster/start_worker.sh`` with the real Ray: a node that dies comes back, a stopped one does not."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from cluster.live import inventory_of
from cluster.local_ray.private_ray import random_token
from cluster.nodes import SeenNode, query_cluster
from tests.live.command_line import ROOT, running
from tests.live.heads import Head, ray_head

DEADLINE_S = 90
# A stopped node is noticed in seconds.
QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.mark.soak
def test_a_node_that_dies_comes_back_with_its_labels_and_a_stopped_one_does_not(
    tmp_path: Path,
) -> None:
    _pretend_mi300x(tmp_path)
    command = [str(ROOT / "cluster/start_worker.sh"), "--node-name=amd-0", "--node-ip-address=127.0.0.1"]
    command += ["--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    with (
        # A short one: Ray's sockets are below it, and their paths are bounded.
        TemporaryDirectory(prefix="lht-", dir="/tmp") as folder,
        random_token(),
        ray_head("--num-cpus=0", RAY_AUTH_MODE="token", **QUICK_TO_NOTICE) as head,
        running(
            command,
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            LONGHAUL_HEAD=head.address,
            LONGHAUL_ROOT=str(tmp_path),
            LONGHAUL_TEMP=folder,
            # What Ray gives runs to leave a node that is told to end; here there are none.
            RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="1",
        ) as script,
    ):
        wait_until(lambda: [node.state for node in workers(head)] == ["alive"])
        (first,) = workers(head)
        group_at_first = group(head)
        assert sockets_of(script.pid) and all(
            name.startswith(f"{folder}/ray/") for name in sockets_of(script.pid)
        )

        raylet_of(script.pid).kill()
        wait_until(lambda: [(node.state, node.times_lost) for node in workers(head)] == [("alive", 1)])
        (second,) = workers(head)
        group_then = group(head)
        script.send_signal(signal.SIGTERM)
        code = script.wait(timeout=DEADLINE_S)
        wait_until(lambda: [node.state for node in workers(head)] == ["drained"])

    assert second.node_id != first.node_id
    assert group_at_first == group_then == ("amd", "AMD-Instinct-MI300X-OAM", 1)
    assert code == 0


def workers(head: Head) -> list[SeenNode]:
    return [node for node in query_cluster(head.address).nodes if node.name == "amd-0"]


def group(head: Head) -> tuple[str, str | None, int]:
    view = query_cluster(head.address)
    (found,) = inventory_of(view.table, view.draining, "test").groups
    return found.vendor, found.device, found.num_devices


def raylet_of(pid: int) -> psutil.Process:
    (raylet,) = [child for child in psutil.Process(pid).children(recursive=True) if child.name() == "raylet"]
    return raylet


def sockets_of(pid: int) -> list[str]:
    """Those that the node's raylet listens on."""
    ends = raylet_of(pid).net_connections(kind="unix")
    return [end.laddr for end in ends if isinstance(end.laddr, str) and "/sockets/" in end.laddr]


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def _pretend_mi300x(root: Path) -> None:
    name = root / "sys/class/drm/card0/device/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("AMD Instinct MI300X OAM\n")
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
