"""The present state of the Ray cluster that this process is connected to."""

import socket
from collections.abc import Collection, Iterable, Mapping
from errno import ECONNREFUSED, EHOSTUNREACH
from typing import Any

import ray

from cluster.grouping import NodesAlike, grouped
from cluster.inventory import ClusterError, Inventory, Node, WorkerGroup
from cluster.placement import room
from cluster.ray_internals import draining_nodes, free_resources

# Ray's number for a drained node whose time was up.
_PREEMPTED = 3
# The caller waits for each; Ray finds the others.
_MOST_ASKED = 2
# One packet may be lost on its way, seldom two.
_TRIES, _ANSWER_S = 2, 0.4


def live_inventory(*, may_be_empty: bool = False) -> Inventory:
    """Returns the groups of all nodes that are alive and have devices; a head without CPUs has none.

    Draining nodes are in the ``excluded`` of their group. Raises ``ClusterError`` if there are no groups,
    unless ``may_be_empty``: all nodes may be away for a while.
    """
    source = f"the Ray cluster at {ray.get_runtime_context().gcs_address}"
    inventory = inventory_of(ray.nodes(), draining_nodes(), source)
    if not inventory.groups and not may_be_empty:
        raise ClusterError(f"{source} has no node with devices; expected CPUs or GPUs on at least one")
    return inventory


def inventory_of(table: Iterable[dict[str, Any]], draining: Collection[str], source: str) -> Inventory:
    """Converts Ray's table of nodes to the groups of those that are alive, sorted by name; there may be
    none.
    """
    alive = sorted((node for node in table if node["Alive"]), key=lambda node: str(node["NodeID"]))
    groups = grouped(_described(found, draining) for found in alive)
    return Inventory(groups=tuple(sorted(groups, key=lambda group: group.name)), source=source)


def free_devices(group: WorkerGroup) -> int:
    """Returns how many more workers the group has room for now; excluded nodes do not count."""
    return room(group, free_resources())


def nodes_with_room(group: WorkerGroup, resources: Mapping[str, float]) -> list[str]:
    """Returns the ids of the nodes that could give all of ``resources`` now."""
    free = free_resources()
    return [
        node.node_id
        for node in group.nodes
        if all(free.get(node.node_id, {}).get(name, 0.0) >= amount for name, amount in resources.items())
    ]


def draining(node_ids: Collection[str]) -> tuple[str, ...]:
    """Returns those of the nodes that are draining: no new work is placed there, and running work is killed
    later.
    """
    return tuple(sorted(set(node_ids) & draining_nodes()))


def lost_nodes(node_ids: Collection[str]) -> dict[str, bool]:
    """Returns those of the nodes that are gone, and of each whether it was preempted.

    Ray takes seconds to find a node dead. A machine that takes no connection is gone for us before: however
    busy it is, its kernel would.
    """
    table = [node for node in ray.nodes() if node["NodeID"] in node_ids]
    lost = {node["NodeID"]: node["DeathReason"] == _PREEMPTED for node in table if not node["Alive"]}
    alive = [node for node in table if node["Alive"]]
    away = [node["NodeID"] for node in alive[:_MOST_ASKED] if _takes_no_connection(node)]
    return lost | {node_id: node_id in draining_nodes() for node_id in away}


def _takes_no_connection(node: Mapping[str, Any]) -> bool:
    for _ in range(_TRIES):
        try:
            with socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), _ANSWER_S):
                return False
        except TimeoutError:
            continue
        except OSError as error:
            return error.errno in (ECONNREFUSED, EHOSTUNREACH)
    return True


def describe_free(group: WorkerGroup) -> str:
    """Says for messages what each node of the group could give to a new run, or that the node is away."""
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
        # Ray divides the node's memory into these two.
        memory_bytes=int(resources.get("memory", 0) + resources.get("object_store_memory", 0)) or None,
        name=found["NodeName"],
        is_draining=found["NodeID"] in draining,
    )
    return NodesAlike(place=f"node {node.node_id[:8]}", labels=found["Labels"], nodes=(node,))
