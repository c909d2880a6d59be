"""Waits until a Slurm job's nodes have joined its Ray, as ``python -m cluster.slurm.wait_for_nodes ADDRESS
NUM_NODES TIMEOUT_S``. The exit code is 1 if some are still missing after that time.
"""

import sys
import time
from collections.abc import Callable

from cluster.inventory import ClusterError
from cluster.nodes import query_cluster

_LOOK_EVERY_S = 0.5


def main(address: str, num_nodes: int, timeout_s: float) -> int:
    num_found = wait_for(lambda: num_joined(address), num_nodes, timeout_s)
    if num_found >= num_nodes:
        return 0
    print(
        f"wait_for_nodes: {num_found} of {num_nodes} nodes joined within {timeout_s:.0f} s; the lines above "
        "say what the others lack",
        file=sys.stderr,
    )
    return 1


def wait_for(
    look: Callable[[], int],
    num_nodes: int,
    timeout_s: float,
    *,
    ticks: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Returns what ``look`` counts, as soon as it is ``num_nodes``, else after ``timeout_s``."""
    deadline = ticks() + timeout_s
    while (num_found := look()) < num_nodes and ticks() < deadline:
        sleep(_LOOK_EVERY_S)
    return num_found


def num_joined(address: str) -> int:
    """How many nodes besides the head have something to train on; 0 while the head does not answer."""
    try:
        nodes = query_cluster(address).nodes
    except ClusterError:
        return 0
    return sum(node.state == "alive" and node.num_cpus + node.num_gpus > 0 for node in nodes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
