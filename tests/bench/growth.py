"""How the cost of what one process does for all ranks grows with their number, from 8 to 16,384.

All ranks and hosts are simulated: what they would send is made here, and the real classes of rank 0 and of
the driver take it. Each object of a rank has one byte. Of each task the table has requests, bytes, seconds
and memory, and the exponent by which each grows, with its 95 % interval. ``at the end`` is the exponent from
the second largest number of ranks to the largest, which no fixed cost makes look smaller.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean

WORLD_SIZES = (8, 128, 1024, 16_384)
NUM_TIMES = 2
# "No faster than ranks": sorting, caches and a busy machine have so much room.
MOST_EXPONENT = 1.25
# Two-sided 95 % of Student's t, by degrees of freedom.
_T = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a task took once. ``memory_bytes`` is the peak of what Python allocated, in a run of its own."""

    cpu_s: float
    num_requests: int = 0
    num_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponent:
    value: float
    low: float
    high: float
    last: float

    def text(self) -> str:
        return f"N^{self.value:.2f} ({self.low:.2f} to {self.high:.2f}), at the end N^{self.last:.2f}"


def exponent(points: Sequence[tuple[int, Sequence[float]]]) -> Exponent:
    """The slope of log(cost) over log(ranks), by least squares over all measurements."""
    pairs = [(log(size), log(max(one, 1e-9))) for size, found in points for one in found]
    mean_x, mean_y = (fmean(side) for side in zip(*pairs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    value = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    free = len(pairs) - 2
    rest = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in pairs)
    half = _T.get(free, 2.0) * sqrt(rest / free / spread)
    (size, before), (largest, last) = points[-2:]
    # Of a busy machine the least is the most telling.
    of_last = log(max(min(last), 1e-9) / max(min(before), 1e-9)) / log(largest / size)
    return Exponent(value=value, low=value - half, high=value + half, last=of_last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A task at all world sizes. ``costs`` has each one's measurements."""

    what: str
    costs: Sequence[tuple[int, Sequence[Cost]]]
    bound: str = ""
    is_met: bool = True

    def show(self) -> bool:
        grows = exponent([(size, [one.cpu_s for one in found]) for size, found in self.costs])
        amounts = {
            name: exponent([(size, [getattr(one, name) for one in found]) for size, found in self.costs])
            for name in ("num_requests", "num_bytes", "memory_bytes")
            if all(getattr(one, name) for _, found in self.costs for one in found)
        }
        is_met = self.is_met and all(one.last <= MOST_EXPONENT for one in (grows, *amounts.values()))
        print(f"{self.what}{self.bound}{'' if is_met else '  MISSED'}")
        for size, found in self.costs:
            one = found[-1]
            took_s = min(cost.cpu_s for cost in found)
            told = [f"{took_s:,.4f} CPU-s"]
            told += [f"{one.num_requests:,} requests"] if one.num_requests else []
            told += [f"{one.num_bytes / 1e6:,.3f} MB"] if one.num_bytes else []
            told += [f"peak {one.memory_bytes / 1e6:,.1f} MB"] if one.memory_bytes else []
            print(f"  {size:6,} simulated ranks: {', '.join(told)}")
        print(f"  CPU {grows.text()}")
        for name, found_exponent in amounts.items():
            print(f"  {name.removeprefix('num_').removesuffix('_bytes')} {found_exponent.text()}")
        return is_met


def measured(
    world_sizes: Sequence[int], costs_of: Callable[[int], Mapping[str, Cost]]
) -> dict[str, list[tuple[int, list[Cost]]]]:
    """What ``costs_of`` tells of each task, ``NUM_TIMES`` times at each world size."""
    found: dict[str, list[tuple[int, list[Cost]]]] = {}
    for world_size in world_sizes:
        trials = [costs_of(world_size) for _ in range(NUM_TIMES)]
        for what in trials[0]:
            found.setdefault(what, []).append((world_size, [costs[what] for costs in trials]))
    return found


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def peak_bytes(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
