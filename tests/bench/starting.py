"""What a private Ray costs before anything runs in it: ours beside Ray's own, in CPU-seconds.

Each start is in a process of its own. The two take turns.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psutil

from cluster.local_ray.private_ray import private_ray
from tests.bench.apart import apart

REPEATS = 5
BOUND = 0.6
# Its processes load for seconds after the start, and then hardly use the CPU.
_LOOK_EVERY_S, _IDLE_S = 3.0, 0.15


def main() -> bool:
    taken: dict[str, list[float]] = {"ours": [], "plain": []}
    for turn in range(REPEATS):
        for way in ("ours", "plain") if turn % 2 else ("plain", "ours"):
            taken[way].append(apart("tests.bench.starting", way))
    ours, plain = median(taken["ours"]), median(taken["plain"])
    print(f"private Ray    {ours:.1f} CPU-seconds to start, {ours / plain:.2f} of Ray's own {plain:.1f}")
    print(f"               (bound {BOUND}; median of {REPEATS} starts each, without a dashboard)")
    return ours / plain < BOUND


@contextmanager
def _plain() -> Iterator[None]:
    import ray

    ray.init(address="local", include_dashboard=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def _settled_cpu_s() -> float:
    """The CPU time of this process and of all below it, once they are idle."""
    before = 0.0
    while (now := _cpu_s()) - before > _IDLE_S:
        before = now
        time.sleep(_LOOK_EVERY_S)
    return now


def _cpu_s() -> float:
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [this, *this.children(recursive=True)])


if __name__ == "__main__":
    with private_ray() if sys.argv[1] == "ours" else _plain():
        print(json.dumps(_settled_cpu_s()))
