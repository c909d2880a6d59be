"""The machines that there are and what a run asks of them: plain data, no effects.

A *group* is a set of nodes of one vendor and one device model. Nodes carry the label ``longhaul.group``;
nodes without it form the group ``local``.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Vendor = Literal["nvidia", "amd", "cpu"]
# ``packed``: on the fewest nodes. ``spread``: evenly over as many nodes as there are. ``whole_node``: on
# the fewest nodes, which no other run shares.
Mode = Literal["packed", "spread", "whole_node"]

LOCAL_GROUP = "local"
GROUP_LABEL = "longhaul.group"
VENDOR_LABEL = "longhaul.vendor"
DEVICE_LABEL = "longhaul.device"
SIMULATED_LABEL = "longhaul.simulated"
# Label on every node of a group that may have several device models.
MIXED_LABEL = "longhaul.mixed_devices"
# What fails together with a node, such as its rack.
DOMAIN_LABEL = "longhaul.domain"

# Results name a node by the first characters of its id.
NODE_NAME_CHARS = 12


class ClusterError(Exception):
    """The cluster, or the file that describes it, cannot be used; the message says what to do."""


class DidNotStart(ClusterError):
    """Ray did not start on this machine. Nothing that the user wrote is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. The numbers are totals, not what is free now; unknown memory is None.

    A node that comes back has a new ``node_id``, but keeps its ``name`` if the name is known.
    """

    node_id: str
    num_devices: int
    num_cpus: int
    memory_bytes: int | None = None
    device: str | None = None
    name: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    is_draining: bool = False

    @property
    def short_name(self) -> str:
        return self.name or self.node_id[:NODE_NAME_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Nodes of one vendor. On the vendor ``cpu`` a device is one core.

    - ``device`` is the market name of all its accelerators; None if it is unknown or they differ.
    - ``simulated`` means that CPU processes stand in for devices; every result of the group says so.
    - ``excluded`` nodes must not be used: the user left them out, or they are draining.
    """

    name: str
    vendor: Vendor
    nodes: tuple[Node, ...]
    device: str | None = None
    simulated: bool = False
    excluded: tuple[Node, ...] = ()

    @property
    def num_devices(self) -> int:
        return sum(node.num_devices for node in self.nodes)

    @property
    def may_mix_devices(self) -> bool:
        """True if all nodes say that the group's device models may differ."""
        return bool(self.nodes) and all((MIXED_LABEL, "true") in node.labels for node in self.nodes)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """All nodes by id, including the excluded ones."""
        return tuple(sorted((*self.nodes, *self.excluded), key=lambda node: node.node_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All groups of a cluster. ``source`` says for messages where the knowledge comes from."""

    groups: tuple[WorkerGroup, ...]
    source: str

    def group(self, name: str) -> WorkerGroup | None:
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run asks for ``num_workers`` devices of exactly one group, one device per worker."""

    group: str
    num_workers: int
    mode: Mode = "packed"


def excluding(inventory: Inventory, names: Collection[str]) -> Inventory:
    """Returns the inventory in which the nodes of ``names`` are excluded from their groups.

    A name is a node's id, its name, or the beginning of its id as results show it. A name that no node has
    changes nothing, because that node may be away. See ``unknown_nodes``.
    """
    return replace(inventory, groups=tuple(_excluding(group, names) for group in inventory.groups))


def unknown_nodes(inventory: Inventory, names: Collection[str]) -> tuple[str, ...]:
    """Returns the ``names`` that no node has, in their order."""
    nodes = [node for group in inventory.groups for node in (*group.nodes, *group.excluded)]
    return tuple(name for name in names if not any(_is_named(node, name) for node in nodes))


def node_names(group: WorkerGroup, node_ids: Sequence[str]) -> list[str]:
    """Returns names for the nodes that a later inventory still recognises.

    A node that was away is recognised by its own name. Nodes on one machine may share a name; they are
    named by the beginning of their ids.
    """
    names = {node.node_id: node.name for node in group.all_nodes}
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    found = ((node_id, names.get(node_id)) for node_id in node_ids)
    return [name if name and name not in shared else node_id[:NODE_NAME_CHARS] for node_id, name in found]


def _excluding(group: WorkerGroup, names: Collection[str]) -> WorkerGroup:
    out = tuple(node for node in group.nodes if any(_is_named(node, name) for name in names))
    kept = tuple(node for node in group.nodes if node not in out)
    return replace(group, nodes=kept, excluded=(*group.excluded, *out)) if out else group


def _is_named(node: Node, name: str) -> bool:
    return name in (node.node_id, node.name) or name == node.node_id[:NODE_NAME_CHARS]
