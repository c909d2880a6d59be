"""Choosing says which measured cells train so many tokens within a budget and a deadline. Pure.

A bound is kept only if the whole interval keeps it, and missed only if the whole interval misses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reporting.analysis.costs.telling import tokens_text
from reporting.analysis.findings import CellCost, CellSummary, Estimate, Money
from reporting.analysis.formatting import counted, number
from reporting.analysis.inspections.numbers import agreement

Fit = Literal["yes", "not sure", "no"]
# Without an interval, what takes more than this many times a bound is no option.
_CLEARLY = 2
WRONG_NUMBERS = "numbers that can't be true"
_ORDER: Mapping[Fit, int] = {"yes": 0, "not sure": 1, "no": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a training may take. ``budget`` is in the currency of the prices."""

    budget: float | None
    deadline_days: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A cell as a way to do the training. ``micro_batch`` is what ran. ``flags`` are the cell's."""

    cost: CellCost
    micro_batch: int | None
    flags: tuple[str, ...]
    fit: Fit

    @property
    def days(self) -> Estimate:
        assert self.cost.training, "options are made with a number of tokens"
        return self.cost.training.days

    @property
    def price(self) -> Estimate | None:
        assert self.cost.training, "options are made with a number of tokens"
        return self.cost.training.cost


def with_doubts(cell: CellSummary) -> CellSummary:
    """Flags a cell whose throughput and step time can't be true together."""
    is_wrong = any(seen.level == "failed" for seen in agreement([cell]))
    return replace(cell, flags=(*cell.flags, WRONG_NUMBERS)) if is_wrong else cell


def options(
    cells: Sequence[CellSummary], money: Money, bounds: Bounds, doubtful: Sequence[str] = ()
) -> tuple[Option, ...]:
    """Returns what fits first, then what may; the cheapest first, or the quickest where no price is known.

    A cell with one of the flags ``doubtful`` is never sure to fit.
    """
    by_id = {(cell.sweep, cell.cell_id): cell for cell in cells}
    found = [
        _option(cost, by_id[cost.sweep, cost.cell_id], bounds, doubtful)
        for cost in money.costs
        if cost.training
    ]
    return tuple(sorted(found, key=_rank))


def _option(cost: CellCost, cell: CellSummary, bounds: Bounds, doubtful: Sequence[str]) -> Option:
    assert cost.training, "only costs of a training are asked for"
    fits = [
        _kept(value, bound)
        for value, bound in (
            (cost.training.days, bounds.deadline_days),
            (cost.training.cost, bounds.budget),
        )
        if bound is not None
    ]
    worst: Fit = max(fits, key=_ORDER.__getitem__, default="yes")
    if worst == "yes" and set(doubtful).intersection(cell.flags):
        worst = "not sure"
    sizes = {row.per_device_batch for row in cell.rows if row.status == "ok" and row.per_device_batch}
    return Option(
        cost=cost,
        micro_batch=max(sizes, default=None) if sizes else max(cell.subject.micro_batch, 0) or None,
        flags=cell.flags,
        fit=worst,
    )


def _kept(value: Estimate | None, bound: float) -> Fit:
    if value is None:
        return "not sure"
    if value.low is None or value.high is None:
        return "no" if value.median > _CLEARLY * bound else "not sure"
    if value.high <= bound:
        return "yes"
    return "no" if value.low > bound else "not sure"


def _rank(option: Option) -> tuple[int, bool, float, float]:
    price = option.price
    return _ORDER[option.fit], price is None, price.median if price else 0.0, option.days.median


def answer(found: Sequence[Option], money: Money, bounds: Bounds) -> str:
    """Names the cheapest and the quickest that fit, or says by how much all miss."""
    wanted = f"{_amount_of_tokens(money)} {_bounds_text(money, bounds)}"
    fitting = [option for option in found if option.fit == "yes"]
    if fitting:
        quickest = min(fitting, key=lambda option: option.days.median)
        first = fitting[0]
        told = f"{counted(len(fitting), 'cell')} of {len(found)} can train {wanted}."
        best = f"The {'cheapest' if first.price else 'quickest'} is {_told(first, money)}."
        also = "" if quickest is first else f" The quickest is {_told(quickest, money)}."
        return f"{told} {best}{also}"
    unsure = [option for option in found if option.fit == "not sure"]
    if unsure:
        may = counted(len(unsure), "cell")
        return f"No cell is sure to train {wanted}; {may} may, first {_told(unsure[0], money)}."
    return f"No measured cell can train {wanted}; {_nearest(found, money, bounds)}."


def _nearest(found: Sequence[Option], money: Money, bounds: Bounds) -> str:
    told = []
    quickest = min(found, key=lambda option: option.days.median)
    if bounds.deadline_days is not None and quickest.days.median > bounds.deadline_days:
        told.append(f"the quickest is {_told(quickest, money)}")
    priced = [(option.price.median, option) for option in found if option.price]
    if bounds.budget is not None and priced and min(priced, key=lambda pair: pair[0])[0] > bounds.budget:
        told.append(f"the cheapest is {_told(min(priced, key=lambda pair: pair[0])[1], money)}")
    return "; ".join(told) or "what is quick enough costs too much, and what is cheap enough takes too long"


def _told(option: Option, money: Money) -> str:
    subject = option.cost.subject
    size = f", micro-batch {option.micro_batch}" if option.micro_batch else ""
    settings = f", {subject.settings}" if subject.settings else ""
    devices = f"{counted(subject.world_size, 'device')} of {option.cost.group}"
    what = f"{subject.strategy} on {devices}{size}{settings}"
    price = f" and {money_text(option.price.median, money)}" if option.price else ""
    flags = f" ({', '.join(option.flags)})" if option.flags else ""
    return f"{what}{flags}: {number(option.days.median)} days{price}"


def _bounds_text(money: Money, bounds: Bounds) -> str:
    told = []
    if bounds.deadline_days is not None:
        days = "day" if bounds.deadline_days == 1 else "days"
        told.append(f"within {bounds.deadline_days:g} {days}")
    if bounds.budget is not None:
        told.append(f"for {money_text(bounds.budget, money)}")
    return " and ".join(told)


def money_text(value: float, money: Money) -> str:
    return f"{number(value)} {money.prices.currency if money.prices else ''}".strip()


def _amount_of_tokens(money: Money) -> str:
    assert money.tokens is not None
    return f"{tokens_text(money.tokens)} tokens"
