"""What the Ray cluster that this process is connected to really has, right now."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ray

from cluster.grouping import NodesAlike, grouped
from cluster.inventory import ClusterError, Inventory, Node, WorkerGroup
from cluster.placement import room
from cluster.ray_internals import draining_nodes, free_resources


def live_inventory(*, may_be_empty: bool = False) -> Inventory:
    """The groups of all nodes that are alive and have devices: a head without CPUs is not one of them.

    Nodes that are being drained are among the ``excluded`` of their group. ``ClusterError`` where there are
    no groups, unless all nodes may be away for a while.
    """
    source = f"the Ray cluster at {ray.get_runtime_context().gcs_address}"
    inventory = inventory_of(ray.nodes(), draining_nodes(), source)
    if not inventory.groups and not may_be_empty:
        raise ClusterError(f"{source} has no node with devices; expected CPUs or GPUs on at least one")
    return inventory


def inventory_of(table: Iterable[dict[str, Any]], draining: Collection[str], source: str) -> Inventory:
    """Ray's table of nodes -> the groups of those that are alive, by name; there may be none."""
    alive = sorted((node for node in table if node["Alive"]), key=lambda node: str(node["NodeID"]))
    groups = grouped(_described(found, draining) for found in alive)
    return Inventory(groups=tuple(sorted(groups, key=lambda group: group.name)), source=source)


def free_devices(group: WorkerGroup) -> int:
    """For how many more workers the group has room right now, nodes that are left out not counted."""
    return room(group, free_resources())


def nodes_with_room(group: WorkerGroup, resources: Mapping[str, float]) -> list[str]:
    """The ids of those that could give all of ``resources`` right now."""
    free = free_resources()
    return [
        node.node_id
        for node in group.nodes
        if all(free.get(node.node_id, {}).get(name, 0.0) >= amount for name, amount in resources.items())
    ]


def draining(node_ids: Collection[str]) -> tuple[str, ...]:
    """Those of them that are to be left: nothing new is placed there, and what runs is killed later."""
    return tuple(sorted(set(node_ids) & draining_nodes()))


def describe_free(group: WorkerGroup) -> str:
    """What each node of the group could give to a new run, or that it is away, for messages."""
    free = free_resources()
    return ", ".join(f"{node.node_id[:8]}: " + _amounts(free.get(node.node_id)) for node in group.nodes)


def _amounts(resources: Mapping[str, float] | None) -> str:
    if resources is None:
        return "is not there now"
    return f"{resources.get('CPU', 0):g} CPU, {resources.get('GPU', 0):g} GPU free"


def _described(found: dict[str, Any], draining: Collection[str]) -> NodesAlike:
    resources = found["Resources"]
    node = Node(
        node_id=found["NodeID"],
        num_devices=int(resources.get("GPU", 0)),
        num_cpus=int(resources.get("CPU", 0)),
        # Ray divides what it found on the node into these two.
        memory_bytes=int(resources.get("memory", 0) + resources.get("object_store_memory", 0)) or None,
        name=found["NodeName"],
        is_draining=found["NodeID"] in draining,
    )
    return NodesAlike(place=f"node {node.node_id[:8]}", labels=found["Labels"], nodes=(node,))
