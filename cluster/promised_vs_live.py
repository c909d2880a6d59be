"""Compares the running cluster with what a cluster file promises. Pure.

The file promises the largest possible cluster, and nodes may be rented only while they are needed. Missing
nodes are therefore a warning. Nodes that exist must be what was promised.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cluster.accelerators import accelerator
from cluster.inventory import DEVICE_LABEL, GROUP_LABEL, VENDOR_LABEL, Inventory, Node, WorkerGroup

NodeFindingKind = Literal[
    "missing_nodes",
    "fewer_devices",
    "more_devices",
    "more_nodes",
    "unexpected_group",
    "other_vendor",
    "other_device",
    "other_simulation",
    "draining",
    "drained",
    "lost",
    "returned",
    "joined",
]
NodeFindingLevel = Literal["failed", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """One difference. ``failed`` means that runs of the group will be refused or wrong, not that there is
    less room.
    """

    kind: NodeFindingKind
    level: NodeFindingLevel
    group: str
    found: str
    remedy: str

    def describe(self) -> str:
        return f"{self.level}: {self.group}: {self.found}. {self.remedy}"


def differences(promised: Inventory, live: Inventory) -> tuple[NodeFinding, ...]:
    """Returns the findings by group in the order of the promise, unexpected groups last. Empty if all is as
    promised.
    """
    return tuple(_differences(promised, live))


def _differences(promised: Inventory, live: Inventory) -> Iterator[NodeFinding]:
    for group in promised.groups:
        found = live.group(group.name)
        yield from _compared(group, found or WorkerGroup(name=group.name, vendor=group.vendor, nodes=()))
    for group in live.groups:
        if promised.group(group.name) is None:
            yield _unexpected(group, promised)
        yield from (draining(group.name, node) for node in group.all_nodes if node.is_draining)


def _compared(promised: WorkerGroup, live: WorkerGroup) -> Iterator[NodeFinding]:
    if promised.vendor != live.vendor:
        yield _other_vendor(promised, live)
        return
    if promised.simulated != live.simulated and live.all_nodes:
        yield _other_simulation(promised, live)
    yield from _other_devices(promised, live)
    yield from _counts(promised, live)


def _other_vendor(promised: WorkerGroup, live: WorkerGroup) -> NodeFinding:
    return NodeFinding(
        kind="other_vendor",
        level="failed",
        group=promised.name,
        found=f"its nodes are {live.vendor}, {promised.vendor} was promised",
        remedy=f"Start them with the labels {GROUP_LABEL} and {VENDOR_LABEL} of what they are.",
    )


def _other_simulation(promised: WorkerGroup, live: WorkerGroup) -> NodeFinding:
    what = {True: "simulated", False: "real"}
    return NodeFinding(
        kind="other_simulation",
        level="failed",
        group=promised.name,
        found=f"its devices are {what[live.simulated]}, {what[promised.simulated]} ones were promised",
        remedy="Read the cluster file that this cluster was started from, or start its nodes anew.",
    )


def _other_devices(promised: WorkerGroup, live: WorkerGroup) -> Iterator[NodeFinding]:
    models = sorted({device for node in promised.nodes if (device := node.device or promised.device)})
    for node in live.all_nodes:
        device = node.device or live.device
        if models and device and not any(_is_same(device, model) for model in models):
            yield NodeFinding(
                kind="other_device",
                level="failed",
                group=live.name,
                found=f"node {node.short_name} has {device}, {' or '.join(models)} was promised",
                remedy=f"Correct {DEVICE_LABEL}, or give the node a {GROUP_LABEL} of its own.",
            )


def _is_same(one: str, other: str) -> bool:
    """Compares known chips exactly. For others one name may be a prefix of the other: Ray says H100 for all
    H100s.
    """
    chips = accelerator(one), accelerator(other)
    if None not in chips:
        return chips[0] == chips[1]
    plain, longer = sorted((re.sub(r"[^A-Z0-9]", "", name.upper()) for name in (one, other)), key=len)
    return longer.startswith(plain)


def _counts(promised: WorkerGroup, live: WorkerGroup) -> Iterator[NodeFinding]:
    """Pairs live nodes with promised ones, which have no names: equal counts first, then largest with
    largest.
    """
    expected, found = list(promised.nodes), []
    for node in sorted(live.all_nodes, key=_size):
        alike = next((one for one in expected if one.num_devices == node.num_devices), None)
        if alike is None:
            found.append(node)
        else:
            expected.remove(alike)
    pairs = list(zip(found, sorted(expected, key=_size), strict=False))
    for node, one in pairs:
        yield _other_count(promised.name, node, one.num_devices)
    if missing := len(expected) - len(pairs):
        yield _missing(promised, live, missing)
    if more := len(found) - len(pairs):
        yield _more(promised, live, more)


def _other_count(group: str, node: Node, expected: int) -> NodeFinding:
    is_fewer = node.num_devices < expected
    return NodeFinding(
        kind="fewer_devices" if is_fewer else "more_devices",
        level="failed" if is_fewer else "warning",
        group=group,
        found=f"node {node.short_name} has {counted(node.num_devices, 'device')}, {expected} were promised",
        remedy="Look at what the driver and Ray see on it (nvidia-smi or amd-smi, CUDA_VISIBLE_DEVICES or "
        "HIP_VISIBLE_DEVICES, the container's devices), then start it again."
        if is_fewer
        else "Correct the resources of its node type in the cluster file.",
    )


def _missing(promised: WorkerGroup, live: WorkerGroup, num_missing: int) -> NodeFinding:
    return NodeFinding(
        kind="missing_nodes",
        level="warning",
        group=promised.name,
        found=f"{num_missing} of {counted(len(promised.nodes), 'node')} are missing, "
        f"{_sum(live)} of {counted(promised.num_devices, 'device')} are there",
        remedy="Start them, unless the autoscaler does when they are needed; a node on which Ray sees no "
        "device belongs to no group.",
    )


def _more(promised: WorkerGroup, live: WorkerGroup, num_more: int) -> NodeFinding:
    return NodeFinding(
        kind="more_nodes",
        level="note",
        group=promised.name,
        found=f"{counted(len(live.all_nodes), 'node')} are there, {num_more} more than promised",
        remedy="Add them to the cluster file, so that plans count on them.",
    )


def _unexpected(group: WorkerGroup, promised: Inventory) -> NodeFinding:
    return NodeFinding(
        kind="unexpected_group",
        level="warning",
        group=group.name,
        found=f"{counted(len(group.all_nodes), 'node')} with {counted(_sum(group), 'device')}, of which "
        f"{promised.source} does not know",
        remedy=f"Start them with the label {GROUP_LABEL} of a promised group, or add theirs to the file.",
    )


def draining(group: str, node: Node) -> NodeFinding:
    return NodeFinding(
        kind="draining",
        level="note",
        group=group,
        found=f"node {node.short_name} is being drained",
        remedy="Nothing new starts on it; what runs there has until its deadline.",
    )


def _sum(group: WorkerGroup) -> int:
    return sum(node.num_devices for node in group.all_nodes)


def _size(node: Node) -> tuple[int, str]:
    return -node.num_devices, node.node_id


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
