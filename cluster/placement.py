"""Requests and an inventory -> where each would run, or the reason why it never can. Pure.

This decides what is *possible* with everything free; when it really starts is decided by queueing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.inventory import Inventory, Request, WorkerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    node_id: str
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The fewest nodes that hold the request, the largest first."""

    group: str
    shares: tuple[Share, ...]

    def describe(self) -> str:
        return f"{self.group}: " + " + ".join(
            f"{share.num_workers} on {share.node_id}" for share in self.shares
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str


def place(requests: Sequence[Request], inventory: Inventory) -> list[Placed | Refused]:
    """One answer per request, in their order; equal requests get equal answers."""
    answers: dict[Request, Placed | Refused] = {}
    for request in requests:
        if request not in answers:
            answers[request] = _place(request, inventory)
    return [answers[request] for request in requests]


def _place(request: Request, inventory: Inventory) -> Placed | Refused:
    group = inventory.group(request.group)
    if group is None:
        known = ", ".join(sorted(group.name for group in inventory.groups)) or "none"
        return Refused(reason=f"there is no group {request.group!r} in {inventory.source} (groups: {known})")
    if request.num_workers > group.num_devices:
        return Refused(reason=_too_small(request, group))
    return Placed(group=group.name, shares=_fewest_nodes(request.num_workers, group))


def _too_small(request: Request, group: WorkerGroup) -> str:
    devices = "device" if group.num_devices == 1 else "devices"
    nodes = "node" if len(group.nodes) == 1 else "nodes"
    return (
        f"{group.name} has {group.num_devices} {devices} on {len(group.nodes)} {nodes}, "
        f"{request.num_workers} were asked for"
    )


def _fewest_nodes(num_workers: int, group: WorkerGroup) -> tuple[Share, ...]:
    shares = []
    left = num_workers
    for node in sorted(group.nodes, key=lambda node: (-node.num_devices, node.node_id)):
        taken = min(left, node.num_devices)
        if taken:
            shares.append(Share(node_id=node.node_id, num_workers=taken))
        left -= taken
    return tuple(shares)
