"""A cluster of several Ray nodes on this machine, whose labels say what each of them stands for."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group

from cluster.inventory import (
    DEVICE_LABEL,
    GROUP_LABEL,
    SIMULATED_LABEL,
    VENDOR_LABEL,
    ClusterError,
    Inventory,
)
from cluster.live import describe_free, free_devices, live_inventory
from cluster.local_ray.private_ray import ray_for_driver
from jobs.execution.messages import Finished, SessionLimits, Started
from jobs.execution.resources import Claim, claim_of
from jobs.launch.ray_train.cells import launch
from tests.live.listening import Listener, job, session

PROJECT = Path(__file__).resolve().parents[3]
LIMITS = SessionLimits(schedule_timeout_s=120, cell_timeout_s=300, hang_timeout_s=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without devices, two groups that pretend to have GPUs, and a node that nobody labelled."""
    folder = tempfile.mkdtemp(prefix="lht-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", folder)
        head = {"num_cpus": 0, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            started.add_node(num_cpus=2, num_gpus=2, labels=_labels("green", "nvidia", "H100"))
            started.add_node(num_cpus=2, num_gpus=1, labels=_labels("red", "amd", "MI300X"))
            started.add_node(num_cpus=1)
            patch.setenv("RAY_ADDRESS", started.address)
            yield started
        finally:
            started.shutdown()
            shutil.rmtree(folder)


def _labels(group: str, vendor: str, device: str) -> dict[str, str]:
    return {GROUP_LABEL: group, VENDOR_LABEL: vendor, DEVICE_LABEL: device, SIMULATED_LABEL: "true"}


@pytest.fixture
def inventory(cluster: Cluster) -> Iterator[Inventory]:
    with ray_for_driver():
        yield live_inventory()


def test_groups_come_from_labels_and_a_head_without_devices_is_none(inventory: Inventory) -> None:
    assert [group.name for group in inventory.groups] == ["green", "local", "red"]
    green, local, red = inventory.groups
    assert (green.vendor, green.device, green.num_devices, green.simulated) == ("nvidia", "H100", 2, True)
    assert (red.vendor, red.device, red.num_devices, red.simulated) == ("amd", "MI300X", 1, True)
    assert (local.vendor, local.device, local.num_devices, local.simulated) == ("cpu", None, 1, False)
    assert red.nodes[0].num_cpus == 2
    assert describe_free(red) == f"{red.nodes[0].node_id[:8]}: 2 CPU, 1 GPU free"
    assert [free_devices(group) for group in inventory.groups] == [2, 1, 1]


@pytest.mark.soak
def test_groups_run_side_by_side_and_each_only_on_its_own_nodes(inventory: Inventory) -> None:
    listener = Listener()
    queues = {
        group.name: [session(group, job(group.name, group, world_size=1, steps=300, warmup=10))]
        for group in inventory.groups
    }
    launch(queues, LIMITS, listener)
    for group in inventory.groups:
        (rank,) = listener.measurement(group.name).ranks
        assert rank.node in {node.node_id for node in group.nodes}
    # Every group had started before the last one ended, or they would have queued for one another.
    order = [type(event) for event in listener.events if isinstance(event, Started | Finished)]
    assert order.index(Finished) >= 1
    assert order[:2] == [Started, Started]


def test_two_vendors_under_one_name_are_an_error_that_says_what_to_do(
    cluster: Cluster, inventory: Inventory
) -> None:
    stranger = cluster.add_node(num_cpus=1, num_gpus=1, labels=_labels("red", "nvidia", "H100"))
    try:
        with pytest.raises(ClusterError, match=r"group 'red' has .*different longhaul\.group labels"):
            live_inventory()
    finally:
        cluster.remove_node(stranger)
        cluster.wait_for_nodes(120)


def test_a_vendor_that_nobody_knows_is_an_error(cluster: Cluster, inventory: Inventory) -> None:
    stranger = cluster.add_node(num_cpus=1, labels={VENDOR_LABEL: "acme"})
    try:
        with pytest.raises(ClusterError, match=r"longhaul\.vendor='acme', expected one of nvidia, amd, cpu"):
            live_inventory()
    finally:
        cluster.remove_node(stranger)
        cluster.wait_for_nodes(120)


def test_ray_gives_workers_on_each_of_several_nodes_that_nobody_labelled(
    cluster: Cluster, inventory: Inventory
) -> None:
    second = cluster.add_node(num_cpus=1)
    try:
        claim = claim_of(live_inventory().group("local"), 2, share_nodes=False)
        assert isinstance(claim, Claim)
        placed = placement_group(
            [dict(claim.resources)] * 2,
            claim.strategy,
            bundle_label_selector=[dict(claim.selector)] * 2,
        )
        assert placed.wait(timeout_seconds=60)
    finally:
        cluster.remove_node(second)
        cluster.wait_for_nodes(120)


def test_a_cluster_that_was_joined_goes_on_afterwards(cluster: Cluster) -> None:
    with ray_for_driver():
        before = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert not ray.is_initialized()
    with ray_for_driver():
        assert {node["NodeID"] for node in ray.nodes() if node["Alive"]} == before
    assert os.environ["RAY_ADDRESS"] == cluster.address
