"""Money turns measured speed and given prices into costs: of tokens, of a training, of energy. Pure.

All of it is arithmetic on measured cells. What has no price, no speed or no energy reading stays None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from reporting.analysis.findings import (
    BreakEven,
    CellCost,
    CellSummary,
    Comparison,
    Estimate,
    MatchUp,
    Money,
    Price,
    Prices,
    PriceVerdict,
    TrainingCost,
)
from reporting.analysis.selection import simulated_runs
from reporting.long_runs.stretches import Stretch
from reporting.long_runs.summary import LongRun

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600.0
_SECONDS_PER_DAY = 86_400.0
_JOULES_PER_KWH = 3.6e6


def money(
    cells: Sequence[CellSummary],
    comparisons: Sequence[Comparison],
    runs: Sequence[LongRun],
    *,
    at_best: Sequence[MatchUp] = (),
    prices: Prices | None,
    tokens: float | None,
) -> Money | None:
    """Returns what measured cells cost, or None if neither prices nor a number of tokens were given.

    What simulated long runs lose says nothing of real ones, so they have no part in it.
    """
    if prices is None and tokens is None:
        return None
    by_group = {price.group: price for price in prices.groups} if prices else {}
    simulated = simulated_runs([row for cell in cells for row in cell.rows], runs)
    goodputs = goodputs_of([run for run in runs if run.name not in simulated])
    return Money(
        prices=prices,
        tokens=tokens,
        goodputs=goodputs,
        costs=tuple(_costs(cells, by_group, goodputs, tokens)),
        break_evens=tuple(_break_evens(comparisons, by_group)),
        best_break_evens=tuple(_break_evens([each.comparison for each in at_best], by_group)),
    )


def goodputs_of(runs: Sequence[LongRun]) -> dict[str, float]:
    """Returns each group's goodput over all of its long runs: their productive time over their wall time.
    Runs that were in several groups say nothing of one of them.
    """
    found: dict[str, tuple[float, float]] = {}
    for run in runs:
        if run.goodput is not None and run.wall_sec and len({one.group for one in run.stretches}) < 2:
            productive, wall = found.get(run.group, (0.0, 0.0))
            found[run.group] = productive + run.goodput * run.wall_sec, wall + run.wall_sec
    return {group: productive / wall for group, (productive, wall) in sorted(found.items()) if productive > 0}


def cost_of(stretch: Stretch, prices: Prices | None) -> float | None:
    """What the devices of a stretch cost while they were held; None without a price of its group, and of
    simulated devices, which nobody pays.
    """
    if prices is None or stretch.simulated:
        return None
    price = next((one.per_device_hour for one in prices.groups if one.group == stretch.group), None)
    return None if price is None else stretch.device_s / _SECONDS_PER_HOUR * price


def _costs(
    cells: Sequence[CellSummary],
    prices: Mapping[str, Price],
    goodputs: Mapping[str, float],
    tokens: float | None,
) -> Iterator[CellCost]:
    for cell in cells:
        speed, world_size = cell.tokens_per_sec, cell.subject.world_size
        if not speed or not world_size:
            continue
        price = prices.get(cell.group)
        seconds = _inverse(speed)
        device_hours = _scaled(seconds, _MILLION * world_size / _SECONDS_PER_HOUR)
        kwh = None if cell.joules_per_token is None else cell.joules_per_token * _MILLION / _JOULES_PER_KWH
        yield CellCost(
            cell_id=cell.cell_id,
            sweep=cell.sweep,
            group=cell.group,
            subject=cell.subject,
            per_million_tokens=_priced(device_hours, price.per_device_hour if price else None),
            spot_per_million_tokens=_priced(device_hours, price.spot_per_device_hour if price else None),
            kwh_per_million_tokens=kwh,
            energy_per_million_tokens=_times(kwh, price.per_kwh if price else None),
            training=_training(seconds, world_size, kwh, price, goodputs.get(cell.group), tokens),
        )


def _training(
    seconds: Estimate,
    world_size: int,
    kwh_per_million: float | None,
    price: Price | None,
    goodput: float | None,
    tokens: float | None,
) -> TrainingCost | None:
    if tokens is None:
        return None
    wall = _scaled(seconds, tokens / (goodput or 1.0))
    device_hours = _scaled(wall, world_size / _SECONDS_PER_HOUR)
    kwh = _times(kwh_per_million, tokens / _MILLION)
    return TrainingCost(
        goodput=goodput,
        days=_scaled(wall, 1 / _SECONDS_PER_DAY),
        cost=_priced(device_hours, price.per_device_hour if price else None),
        spot_cost=_priced(device_hours, price.spot_per_device_hour if price else None),
        kwh=kwh,
        energy_cost=_times(kwh, price.per_kwh if price else None),
    )


def _break_evens(comparisons: Sequence[Comparison], prices: Mapping[str, Price]) -> Iterator[BreakEven]:
    """Yields one for each comparison of measured cells of which a side's price is known. If that is only the
    other's, the sides are exchanged.
    """
    for found in comparisons:
        ours, theirs = prices.get(found.baseline), prices.get(found.other)
        if found.ratio is None or found.ratio <= 0:
            continue
        if ours:
            yield _break_even(found, found.baseline, found.other, ours, theirs)
        elif theirs:
            yield _break_even(_exchanged(found), found.other, found.baseline, theirs, None)


def _break_even(found: Comparison, baseline: str, other: str, ours: Price, theirs: Price | None) -> BreakEven:
    price = ours.per_device_hour
    assert found.ratio is not None
    low, high = _times(found.low, price), _times(found.high, price)
    return BreakEven(
        subject=found.subject,
        baseline=baseline,
        other=other,
        baseline_price=price,
        other_price=theirs.per_device_hour if theirs else None,
        price=found.ratio * price,
        low=low,
        high=high,
        verdict=_verdict(theirs.per_device_hour, low, high) if theirs else None,
    )


def _exchanged(found: Comparison) -> Comparison:
    return replace(found, ratio=_one_over(found.ratio), low=_one_over(found.high), high=_one_over(found.low))


def _verdict(price: float, low: float | None, high: float | None) -> PriceVerdict:
    if low is None or high is None:
        return "too few repeats"
    if price < low:
        return "cheaper"
    return "dearer" if price > high else "undecided"


def _inverse(found: Estimate) -> Estimate:
    """Turns tokens per second into seconds per token."""
    return replace(found, median=1 / found.median, low=_one_over(found.high), high=_one_over(found.low))


def _scaled(found: Estimate, factor: float) -> Estimate:
    return replace(
        found, median=found.median * factor, low=_times(found.low, factor), high=_times(found.high, factor)
    )


def _priced(device_hours: Estimate, price: float | None) -> Estimate | None:
    return None if price is None else _scaled(device_hours, price)


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor


def _one_over(value: float | None) -> float | None:
    return 1 / value if value else None
