"""Places requests on an inventory, or says why a request can never run. Pure.

Each request is placed as if everything were free; the queue decides when it really starts. Excluded nodes
of a group are never used.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.inventory import Inventory, Node, Request, WorkerGroup

# A node's sort key: its number of devices, negated, and its id. Then the number of workers placed there.
_Entry = tuple[int, str]
_Taken = tuple[_Entry, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    node_id: str
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The nodes of a request on its one group, the node with the most devices first."""

    group: str
    shares: tuple[Share, ...]

    def describe(self) -> str:
        return f"{self.group}: " + " + ".join(
            f"{share.num_workers} on {share.node_id}" for share in self.shares
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str


def room(group: WorkerGroup, free: Mapping[str, Mapping[str, float]]) -> int:
    """Returns how many workers that share nodes could start now. ``free`` holds Ray's resources by node id.

    A node that is missing from ``free`` is away. A worker needs a core and, if the group has devices, one
    device.
    """
    needed = ("CPU",) if group.vendor == "cpu" else ("CPU", "GPU")
    on_nodes = (free.get(node.node_id, {}) for node in group.nodes)
    return sum(int(min(there.get(name, 0.0) for name in needed)) for there in on_nodes)


def place(requests: Sequence[Request], inventory: Inventory) -> list[Placed | Refused]:
    """Returns one answer per request, in the requests' order; equal requests get equal answers."""
    answers: dict[Request, Placed | Refused] = {}
    for request in requests:
        if request not in answers:
            answers[request] = _place(request, inventory)
    return [answers[request] for request in requests]


def _place(request: Request, inventory: Inventory) -> Placed | Refused:
    group = inventory.group(request.group)
    if group is None:
        return _no_group(request, inventory)
    if request.num_workers > group.num_devices:
        return _too_small(request, group)
    nodes = sorted((-node.num_devices, node.node_id) for node in group.nodes if node.num_devices > 0)
    taken = (_evenly if request.mode == "spread" else _fewest)(nodes, request.num_workers)
    shares = (Share(node_id=node_id, num_workers=num) for (_, node_id), num in taken)
    return Placed(group=group.name, shares=tuple(shares))


def _no_group(request: Request, inventory: Inventory) -> Refused:
    known = ", ".join(sorted(group.name for group in inventory.groups)) or "none"
    return Refused(reason=f"there is no group {request.group!r} in {inventory.source} (groups: {known})")


def _too_small(request: Request, group: WorkerGroup) -> Refused:
    devices = "device" if group.num_devices == 1 else "devices"
    nodes = "node" if len(group.nodes) == 1 else "nodes"
    without = f" without {_left_out(group.excluded)}" if group.excluded else ""
    return Refused(
        reason=f"{group.name} has {group.num_devices} {devices} on {len(group.nodes)} {nodes}{without}, "
        f"{request.num_workers} were asked for"
    )


def _left_out(nodes: Sequence[Node]) -> str:
    why = {True: "draining", False: "excluded"}
    return ", ".join(sorted(f"{node.node_id} ({why[node.is_draining]})" for node in nodes))


def _fewest(nodes: Sequence[_Entry], num_workers: int) -> list[_Taken]:
    """Fills the largest nodes; the remaining workers go to the node that they fill best."""
    taken: list[_Taken] = []
    left = num_workers
    for entry in nodes:
        if left <= -entry[0]:
            break
        taken.append((entry, -entry[0]))
        left += entry[0]
    if left:
        best = nodes[bisect_right(nodes, (-left, "\U0010ffff")) - 1][0]
        taken.append((nodes[max(len(taken), bisect_left(nodes, (best, "")))], left))
    return taken


def _evenly(nodes: Sequence[_Entry], num_workers: int) -> list[_Taken]:
    """Gives nodes with the least room first what they can hold of an even share; the others take the rest."""
    taken: list[_Taken] = []
    left = num_workers
    used = nodes[:num_workers]
    for index in range(len(used) - 1, -1, -1):
        share = min(-used[index][0], left // (index + 1))
        taken.append((used[index], share))
        left -= share
    return taken[::-1]
