"""What the Ray cluster that this process is connected to really has, right now."""

from collections.abc import Mapping
from typing import Any, cast, get_args

import ray

from cluster.inventory import (
    DEVICE_LABEL,
    GROUP_LABEL,
    LOCAL_GROUP,
    SIMULATED_LABEL,
    VENDOR_LABEL,
    ClusterError,
    Inventory,
    Node,
    Vendor,
    WorkerGroup,
)

_ACCELERATOR_LABEL = "ray.io/accelerator-type"
_AMD_PREFIX = "AMD-"


def live_inventory() -> Inventory:
    """The groups of all nodes that are alive and have devices: a head without CPUs is not one of them."""
    source = f"the Ray cluster at {ray.get_runtime_context().gcs_address}"
    groups: dict[str, WorkerGroup] = {}
    for found in sorted(_alive(), key=lambda node: str(node["NodeID"])):
        group = _group_of(found)
        if group.num_devices:
            groups[group.name] = _joined(groups.get(group.name), group)
    if not groups:
        raise ClusterError(f"{source} has no node with devices; expected CPUs or GPUs on at least one")
    return Inventory(groups=tuple(groups[name] for name in sorted(groups)), source=source)


def describe_free(group: WorkerGroup) -> str:
    """What each node of the group could give to a new run, for messages."""
    free = ray._private.state.available_resources_per_node()
    return ", ".join(f"{node.node_id[:8]}: " + _amounts(free.get(node.node_id, {})) for node in group.nodes)


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPU, {resources.get('GPU', 0):g} GPU free"


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _group_of(found: dict[str, Any]) -> WorkerGroup:
    labels, resources = found["Labels"], found["Resources"]
    vendor = _vendor(found["NodeID"], labels, resources)
    num_cpus, num_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    node = Node(
        node_id=found["NodeID"],
        num_devices=num_cpus if vendor == "cpu" else num_gpus,
        num_cpus=num_cpus,
        # Ray divides what it found on the node into these two.
        memory_bytes=int(resources.get("memory", 0) + resources.get("object_store_memory", 0)) or None,
    )
    return WorkerGroup(
        name=labels.get(GROUP_LABEL, LOCAL_GROUP),
        vendor=vendor,
        nodes=(node,),
        device=labels.get(DEVICE_LABEL) or labels.get(_ACCELERATOR_LABEL),
        simulated=labels.get(SIMULATED_LABEL) == "true",
    )


def _vendor(node_id: str, labels: Mapping[str, str], resources: Mapping[str, float]) -> Vendor:
    if VENDOR_LABEL in labels:
        vendor = labels[VENDOR_LABEL]
        if vendor not in get_args(Vendor):
            raise ClusterError(
                f"node {node_id}: found {VENDOR_LABEL}={vendor!r}, expected {', '.join(get_args(Vendor))}"
            )
        return cast(Vendor, vendor)
    if not resources.get("GPU"):
        return "cpu"
    return "amd" if labels.get(_ACCELERATOR_LABEL, "").startswith(_AMD_PREFIX) else "nvidia"


def _joined(one: WorkerGroup | None, other: WorkerGroup) -> WorkerGroup:
    if one is None:
        return other
    if (one.vendor, one.device) != (other.vendor, other.device):
        raise ClusterError(
            f"group {one.name!r} has {one.vendor} {one.device or ''} (node {one.nodes[0].node_id[:8]}) and "
            f"{other.vendor} {other.device or ''} (node {other.nodes[0].node_id[:8]}); a group is one vendor "
            f"and one device model: start their nodes with different {GROUP_LABEL} labels"
        )
    return WorkerGroup(
        name=one.name,
        vendor=one.vendor,
        nodes=one.nodes + other.nodes,
        device=one.device,
        simulated=one.simulated or other.simulated,
    )
