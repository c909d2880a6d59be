"""Extrapolates throughput to more devices than were measured. Only where somebody asked for it, never beyond
four times the largest size, and always with an interval.

The throughput per device is drawn as a line over the doublings of the number of devices, on the logarithm.
The interval is that of a new value, by Student's t over the sizes. It also holds what two other curves say,
since efficiency often falls faster at larger sizes: a parabola, and a time that grows with the number of
devices itself. A network that begins beyond the measured sizes is in no curve.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log, log2
from statistics import median

from reporting.analysis.findings import CellSummary, Estimate, Subject
from reporting.analysis.statistics import line_at, parabola_at

FEWEST_SIZES = 3
FURTHEST = 4
EXTRAPOLATED = "extrapolated"
ONE_NODE = "measured within one node only"
# No curve makes a device ten times as fast or slow as it was measured.
_MOST = log(10)
_LEAST = 1e-12


def extrapolated(cells: Sequence[CellSummary]) -> Iterator[CellSummary]:
    """Yields a cell for twice and four times the largest measured size of each setting that was measured at
    three sizes at least. Its flags say so; it has no runs.
    """
    families: defaultdict[tuple[str, Subject], list[CellSummary]] = defaultdict(list)
    for cell in cells:
        if cell.tokens_per_sec and cell.subject.world_size and "imported" not in cell.flags:
            families[cell.group, replace(cell.subject, world_size=0)].append(cell)
    for family in families.values():
        speeds = _per_device(family)
        if len(speeds) >= FEWEST_SIZES:
            largest = max(family, key=lambda cell: cell.subject.world_size)
            yield from (_cell(largest, family, speeds, factor) for factor in (2, FURTHEST))


def predicted(speeds: Sequence[tuple[int, float]], world_size: int) -> Estimate:
    """Returns the throughput per device at ``world_size``; ``speeds`` has it by the number of devices."""
    sizes, logs = [float(size) for size, _ in speeds], [log(speed) for _, speed in speeds]
    doublings, wanted = [log2(size) for size in sizes], log2(world_size)
    middle, *bounds = line_at(doublings, logs, wanted)
    # The time of a step grows with the number of devices itself.
    times = line_at(sizes, [1 / speed for _, speed in speeds], float(world_size))
    bounds += [parabola_at(doublings, logs, wanted), *(-log(max(time, _LEAST)) for time in times)]
    low, high = (min(max(bound, logs[-1] - _MOST), logs[-1] + _MOST) for bound in (min(bounds), max(bounds)))
    return Estimate(
        median=min(max(exp(middle), exp(low)), exp(high)), low=exp(low), high=exp(high), cv=None, num_runs=0
    )


def _per_device(family: Sequence[CellSummary]) -> list[tuple[int, float]]:
    """The median throughput per device at each measured size."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for cell in family:
        assert cell.tokens_per_sec, "families have only cells with numbers"
        found[cell.subject.world_size].append(cell.tokens_per_sec.median / cell.subject.world_size)
    return [(size, median(values)) for size, values in sorted(found.items())]


def _cell(
    largest: CellSummary, family: Sequence[CellSummary], speeds: Sequence[tuple[int, float]], factor: int
) -> CellSummary:
    world_size = largest.subject.world_size * factor
    found = predicted(speeds, world_size)
    whole = replace(
        found,
        median=found.median * world_size,
        low=found.low and found.low * world_size,
        high=found.high and found.high * world_size,
    )
    is_one_node = all(len(row.nodes) == 1 for cell in family for row in cell.rows if row.status == "ok")
    return replace(
        largest,
        cell_id=f"{largest.cell_id}-x{world_size}",
        subject=replace(largest.subject, world_size=world_size),
        flags=(*largest.flags, EXTRAPOLATED, *([ONE_NODE] if is_one_node else [])),
        tokens_per_sec=whole,
        tokens_per_sec_per_device=found,
        step_time_sec=None,
        rows=(),
    )
