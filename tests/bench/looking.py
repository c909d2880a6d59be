"""How long it takes to see a running cluster: four nodes and their head, on this machine."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from cluster.cluster_file import read_cluster
from cluster.live import inventory_of
from cluster.local_ray.simulated import mixed_cluster
from cluster.nodes import query_cluster

REPEATS = 5
NUM_NODES = 4
BOUND_S = 1.0

FILE = """
max_workers: 4
available_node_types:
  nvidia:
    max_workers: 2
    resources: {CPU: 1, GPU: 1}
    labels: {longhaul.group: nvidia, longhaul.vendor: nvidia, longhaul.simulated: "true"}
  amd:
    max_workers: 2
    resources: {CPU: 1, GPU: 1}
    labels: {longhaul.group: amd, longhaul.vendor: amd, longhaul.simulated: "true"}
"""


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as name:
        path = Path(name) / "cluster.yaml"
        path.write_text(FILE)
        start = time.perf_counter()
        with mixed_cluster(read_cluster(path)) as cluster:
            print(f"cluster local  {time.perf_counter() - start:.1f} s until {NUM_NODES} nodes are there")
            view_s = _seconds(lambda: _see(cluster.address))
            show_s = _seconds(lambda: _show(os.environ | cluster.environment))
    print(f"inventory      {view_s:.3f} s of {NUM_NODES} live nodes (bound {BOUND_S} s)")
    print(f"cluster show   {show_s:.2f} s with its start and Ray's import")
    return view_s < BOUND_S


def _see(address: str) -> None:
    view = query_cluster(address)
    found = inventory_of(view.table, view.draining, address)
    assert sum(len(group.nodes) for group in found.groups) == NUM_NODES


def _show(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "jobs.cli", "cluster", "show"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)


def _seconds(act: Callable[[], None]) -> float:
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return median(taken)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
