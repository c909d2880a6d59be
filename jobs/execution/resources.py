"""Computes what a worker group asks Ray for, so that it runs wholly on its group and alone on its nodes.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

from cluster.inventory import GROUP_LABEL, LOCAL_GROUP, Inventory, Mode, Node, Request, WorkerGroup
from cluster.placement import Placed, Refused, place

# Ray counts resources in ten-thousandths: a claim that is rounded up would not fit its node.
_RESOURCE_UNIT = 10_000
_NODE_ID_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker group asks Ray for. ``resources`` are each worker's; ``selector`` names the nodes
    to use.
    """

    num_workers: int
    resources: dict[str, float]
    selector: dict[str, str]
    strategy: Literal["PACK", "STRICT_PACK", "SPREAD"]

    def describe(self) -> str:
        each = " and ".join(f"{amount:g} {name}" for name, amount in self.resources.items())
        return f"{self.num_workers} x {each}"


def mode_of(*, share_nodes: bool, spread: bool) -> Mode:
    if spread:
        return "spread"
    return "packed" if share_nodes else "whole_node"


def claim_of(
    group: WorkerGroup, num_workers: int, *, share_nodes: bool, spread: bool = False
) -> Claim | Refused:
    """The claim of a worker group, or why no node can satisfy it.

    Unless nodes are shared, the workers of a node take all its CPUs together. Then no other run, of this
    sweep or another, fits beside them. Two kinds of nodes have room left. One gets fewer workers than the
    others; the other has more CPUs than the smallest node of its group.
    """
    mode = mode_of(share_nodes=share_nodes, spread=spread)
    answer = place([Request(group=group.name, num_workers=num_workers, mode=mode)], _only(group))[0]
    if isinstance(answer, Refused):
        return answer
    device = {} if group.vendor == "cpu" else {"GPU": 1.0}
    return Claim(
        num_workers=num_workers,
        resources={"CPU": 1.0 if share_nodes else _share_of_cpus(group, answer)} | device,
        selector=_selector(group),
        strategy="SPREAD" if spread else "STRICT_PACK" if len(answer.shares) == 1 else "PACK",
    )


def _only(group: WorkerGroup) -> Inventory:
    return Inventory(groups=(group,), source="its own group")


def _share_of_cpus(group: WorkerGroup, placed: Placed) -> float:
    num_cpus = min(node.num_cpus for node in group.nodes)
    most_on_a_node = max(share.num_workers for share in placed.shares)
    return floor(num_cpus / most_on_a_node * _RESOURCE_UNIT) / _RESOURCE_UNIT


def _selector(group: WorkerGroup) -> dict[str, str]:
    """The nodes to use, by label. Ray cannot select by a missing label, so unlabelled nodes are named one by
    one.
    """
    if group.name == LOCAL_GROUP:
        return {_NODE_ID_LABEL: f"in({_ids(group.nodes)})"}
    without = {_NODE_ID_LABEL: f"!in({_ids(group.excluded)})"} if group.excluded else {}
    return {GROUP_LABEL: group.name} | without


def _ids(nodes: Sequence[Node]) -> str:
    # Ray takes a blank behind a comma for a part of the next name.
    return ",".join(node.node_id for node in nodes)
