"""Telling says in sentences what costs mean for a choice. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from reporting.analysis.findings import BreakEven, CellCost, Estimate, Money
from reporting.analysis.formatting import counted, fraction, is_known, number

_DECIDED = ("cheaper", "dearer", "undecided", "too few repeats")


def told(found: Money) -> Iterator[str]:
    """Yields, for each model, where its tokens cost least, then each pair's break-even price."""
    currency = found.prices.currency if found.prices else ""
    for model in sorted({cost.subject.model for cost in found.costs}):
        best = _cheapest(found, model)
        yield from _of_model(model, best, currency)
        yield from _of_training(model, best, found)
    pairs = sorted(found.break_evens, key=_pair)
    for _, members in groupby(pairs, key=_pair):
        yield _of_pair(list(members), currency)
    if found.prices:
        yield from _without_price(found)


def _cheapest(found: Money, model: str) -> list[CellCost]:
    """Returns each group's cell with the lowest cost per token of a model, the cheapest first. Groups without
    a price are left out; if no group has one, the cells with the fastest training are returned.
    """
    has_prices = any(cost.per_million_tokens for cost in found.costs)
    known = [
        (key.median, cost)
        for cost in found.costs
        if cost.subject.model == model and (key := _key(cost, has_prices=has_prices))
    ]
    best: dict[str, CellCost] = {}
    for _, cost in sorted(known, key=lambda pair: pair[0]):
        best.setdefault(cost.group, cost)
    return list(best.values())


def _key(cost: CellCost, *, has_prices: bool) -> Estimate | None:
    if has_prices:
        return cost.per_million_tokens
    return cost.training.days if cost.training else None


def _amount(found: Estimate | None, currency: str) -> str:
    """Returns an amount with its currency and interval: ``0.214 USD (0.210 to 0.219)``."""
    if found is None:
        return "unknown"
    between = f" ({number(found.low)} to {number(found.high)})" if is_known(found.low) else ""
    return f"{number(found.median)} {currency}{between}"


def _of_model(model: str, best: Sequence[CellCost], currency: str) -> Iterator[str]:
    if not best or not best[0].per_million_tokens:
        return
    first, *others = best
    dearer = [f"{cost.group} {_amount(cost.per_million_tokens, currency)}" for cost in others[:3]]
    price = _amount(first.per_million_tokens, currency)
    if dearer:
        yield (
            f"A million tokens of {model} cost least on {first.group}: {price} with {_how(first)}; "
            f"{', '.join(dearer)}."
        )
    else:
        yield f"A million tokens of {model} cost {price} on {first.group} with {_how(first)}."


def _of_training(model: str, best: Sequence[CellCost], found: Money) -> Iterator[str]:
    for cost in best[:1]:
        training = cost.training
        if training is None or found.tokens is None:
            continue
        price = ""
        if found.prices and training.cost:
            price = f" and {_amount(training.cost, found.prices.currency)}"
        losses = (
            f"at the goodput of {fraction(training.goodput)} that long runs on {cost.group} had"
            if training.goodput
            else f"for steps alone, since no long run on {cost.group} is known"
        )
        yield (
            f"{tokens_text(found.tokens)} tokens of {model} take {number(training.days.median)} days{price} "
            f"on {cost.group} with {_how(cost)}, {losses}."
        )


def tokens_text(tokens: float) -> str:
    """Returns a number of tokens with its usual letter: ``15T``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if tokens >= size:
            return f"{tokens / size:g}{letter}"
    return f"{tokens:g}"


def _how(cost: CellCost) -> str:
    subject = cost.subject
    return f"{subject.strategy} on {counted(subject.world_size, 'device')}"


def _pair(found: BreakEven) -> tuple[str, str]:
    return found.baseline, found.other


def _of_pair(members: Sequence[BreakEven], currency: str) -> str:
    first = members[0]
    prices = [found.price for found in members]
    if len(members) == 1:
        has_interval = is_known(first.low) and is_known(first.high)
        spread = f" (95 %: {number(first.low)} to {number(first.high)})" if has_interval else ""
    else:
        cells = counted(len(members), "cell")
        spread = f" in the median of {cells} ({number(min(prices))} to {number(max(prices))})"
    said = (
        f"A device of {first.other} is worth {number(median(prices))} {currency} an hour{spread} "
        f"while one of {first.baseline} costs {number(first.baseline_price)}"
    )
    if first.other_price is None:
        return f"{said}."
    verdicts = [found.verdict for found in members]
    counts = ", ".join(
        f"{verdict} in {verdicts.count(verdict)}" for verdict in _DECIDED if verdict in verdicts
    )
    return f"{said}. It costs {number(first.other_price)}: {counts}."


def _without_price(found: Money) -> Iterator[str]:
    assert found.prices
    given = {price.group for price in found.prices.groups}
    measured = {cost.group for cost in found.costs}
    if missing := sorted(measured - given):
        yield f"No price was given for {', '.join(missing)}: nothing is said of what it costs there."
    if unknown := sorted(given - measured):
        yield f"Prices were given for {', '.join(unknown)}, of which nothing was measured."
