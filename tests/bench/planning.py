"""How long it takes to place and to schedule 10,000 requests on 1,000 nodes, beside the obvious way.

The obvious way scans all nodes for every request and takes what is free, first fit, wave after wave. It
plans the same requests, all of them packed, since it knows no other mode; so ours does that once more.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import get_args

from cluster.inventory import Inventory, Mode, Node, Request, Vendor, WorkerGroup
from cluster.placement import Placed, Scheduled, Share, place, schedule

NUM_REQUESTS, NODES_PER_GROUP, DEVICES_PER_NODE, REPEATS = 10_000, 500, 8, 5
BOUND_S = 2.0


def main() -> bool:
    requests, inventory = _requests(), _inventory()
    packed = [replace(request, mode="packed") for request in requests]
    plan_s = _median_s(lambda: (place(requests, inventory), schedule(requests, inventory)))
    packed_s = _median_s(lambda: schedule(packed, inventory))
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


def _scan(requests: Sequence[Request], inventory: Inventory) -> list[Scheduled]:
    groups = {group.name: group for group in inventory.groups}
    waves = {name: (0, _free(group)) for name, group in groups.items()}
    plans = []
    for request in requests:
        wave, free = waves[request.group]
        taken = _first_fit(request.num_workers, free)
        if taken is None:
            wave, free = wave + 1, _free(groups[request.group])
            waves[request.group] = wave, free
            taken = _first_fit(request.num_workers, free) or {}
        for node_id, num in taken.items():
            free[node_id] -= num
        plans.append(Scheduled(wave=wave, placed=_placed(request.group, taken)))
    return plans


def _placed(group: str, taken: dict[str, int]) -> Placed:
    shares = tuple(Share(node_id=node_id, num_workers=num) for node_id, num in taken.items())
    return Placed(group=group, shares=shares)


def _free(group: WorkerGroup) -> dict[str, int]:
    return {node.node_id: node.num_devices for node in group.nodes}


def _first_fit(num_workers: int, free: dict[str, int]) -> dict[str, int] | None:
    if num_workers > sum(free.values()):
        return None
    taken = {}
    for node_id, num in free.items():
        if num and num_workers:
            taken[node_id] = min(num, num_workers)
            num_workers -= taken[node_id]
    return taken


def _median_s(work: Callable[[], object]) -> float:
    return median(_seconds(work) for _ in range(REPEATS))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
