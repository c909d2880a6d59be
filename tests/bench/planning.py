"""How long it takes to place a sweep's 10,000 requests on 1,000 nodes, beside the obvious way.

The obvious way scans all nodes for every request, first fit. It knows packed requests only, so ours places
those once more.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import get_args

from cluster.inventory import Inventory, Mode, Node, Request, Vendor, WorkerGroup
from cluster.placement import place

NUM_REQUESTS, NODES_PER_GROUP, DEVICES_PER_NODE, REPEATS = 10_000, 500, 8, 5
BOUND_S = 2.0


def main() -> bool:
    requests, inventory = _requests(), _inventory()
    packed = [replace(request, mode="packed") for request in requests]
    plan_s = _median_s(lambda: place(requests, inventory))
    packed_s = _median_s(lambda: place(packed, inventory))
    scan_s = _median_s(lambda: _scan(packed, inventory))
    ratio = f"{scan_s / packed_s:.1f}x as fast as a scan of all nodes, {scan_s:.2f} s"
    print(
        f"planning       {plan_s:.2f} s for {NUM_REQUESTS:,} requests of three modes on "
        f"{2 * NODES_PER_GROUP:,} nodes (bound {BOUND_S} s); only packed {packed_s:.2f} s, {ratio}"
    )
    return plan_s < BOUND_S


def _inventory() -> Inventory:
    vendors: Sequence[Vendor] = ("nvidia", "amd")
    return Inventory(groups=tuple(_group(vendor) for vendor in vendors), source="the bench")


def _group(vendor: Vendor) -> WorkerGroup:
    nodes = (
        Node(node_id=f"{vendor}-{index}", num_devices=DEVICES_PER_NODE, num_cpus=96)
        for index in range(NODES_PER_GROUP)
    )
    return WorkerGroup(name=vendor, vendor=vendor, nodes=tuple(nodes))


def _requests() -> list[Request]:
    random = Random(0)
    return [
        Request(
            group=random.choice(("nvidia", "amd")),
            num_workers=random.choice((1, 2, 4, 8, 16, 64, 256)),
            mode=random.choice(get_args(Mode)),
        )
        for _ in range(NUM_REQUESTS)
    ]


def _scan(requests: Sequence[Request], inventory: Inventory) -> list[dict[str, int]]:
    groups = {group.name: group for group in inventory.groups}
    return [_first_fit(request.num_workers, groups[request.group]) for request in requests]


def _first_fit(num_workers: int, group: WorkerGroup) -> dict[str, int]:
    taken = {}
    for node in group.nodes:
        if num_workers:
            taken[node.node_id] = min(node.num_devices, num_workers)
            num_workers -= taken[node.node_id]
    return taken


def _median_s(work: Callable[[], object]) -> float:
    return median(_seconds(work) for _ in range(REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
