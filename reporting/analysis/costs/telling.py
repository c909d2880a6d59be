"""Telling says in sentences what costs mean for a choice. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from reporting.analysis.answer.sizes import at_sizes, setting_of, sizes_of, usual_sizes, without_its_batch
from reporting.analysis.findings import BreakEven, CellCost, Estimate, Money
from reporting.analysis.formatting import counted, fraction, is_known, joined, number, short

# As many as four groups have.
_MOST_PAIRS = 6
_DECIDED = ("cheaper", "dearer", "undecided", "too few repeats")


def told(found: Money) -> Iterator[str]:
    """Yields, for each model, where its tokens cost least, then each pair's break-even prices."""
    currency = found.prices.currency if found.prices else ""
    for model in sorted({cost.subject.model for cost in found.costs}):
        best = _cheapest(found, model)
        yield from _of_model(model, best, found)
        yield from _of_training(model, best, found)
    for beginning, break_evens in (("", found.break_evens), ("Each at its best, ", found.best_break_evens)):
        pairs = [list(members) for _, members in groupby(sorted(break_evens, key=_pair), key=_pair)]
        for members in pairs[:_MOST_PAIRS]:
            yield _of_pair(beginning, members, currency)
        if len(pairs) > _MOST_PAIRS:
            further = counted(len(pairs) - _MOST_PAIRS, "further pair")
            yield f"{further} of groups: see the table of break-even prices."
    if found.prices:
        yield from _without_price(found)


def _cheapest(found: Money, model: str) -> list[CellCost]:
    """Returns each group's cell with the lowest cost per token of a model, the cheapest first, among cells of
    the sizes that most groups have. Groups without a price are left out; if no group has one, the cells with
    the fastest training are returned.
    """
    has_prices = any(cost.per_million_tokens for cost in found.costs)
    known = [
        (key.median, cost)
        for cost in found.costs
        if cost.subject.model == model and (key := _key(cost, has_prices=has_prices))
    ]
    usual = usual_sizes(cost for _, cost in known)
    best: dict[str, CellCost] = {}
    for _, cost in sorted(known, key=lambda pair: pair[0]):
        if sizes_of(cost.subject) == usual:
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


def _of_model(model: str, best: Sequence[CellCost], found: Money) -> Iterator[str]:
    if not best or not best[0].per_million_tokens:
        return
    first, *others = best
    currency = found.prices.currency if found.prices else ""
    what = f"{at_sizes(first.subject)}, a million tokens of {short(model, 60)}"
    price, how = _amount(first.per_million_tokens, currency), setting_of(first.subject)
    if not others:
        yield f"{what} cost {price} on {short(first.group, 60)} with {how}."
        return
    dearer = [f"{short(cost.group, 60)} {_amount(cost.per_million_tokens, currency)}" for cost in others]
    as_cheap = [cost.group for cost in others if not _is_dearer(cost, first)]
    batch = "".join(without_its_batch(first, _alike(first, best, found)))
    unsure = f" Not shown to be dearer: {joined(as_cheap, 3)}." if as_cheap else ""
    least = f"{what} cost least on {short(first.group, 60)}: {price} with {how}; {joined(dearer, 3)}."
    yield f"{least}{unsure}{batch}"


def _alike(first: CellCost, best: Sequence[CellCost], found: Money) -> Iterator[CellCost]:
    """Yields what else of the same model and sizes has a cost in the groups that are named."""
    groups = {cost.group for cost in best}
    for cost in found.costs:
        is_alike = (
            sizes_of(cost.subject) == sizes_of(first.subject) and cost.subject.model == first.subject.model
        )
        if is_alike and cost.group in groups:
            yield cost


def _is_dearer(cost: CellCost, first: CellCost) -> bool:
    return bool(cost.per_million_tokens and cost.per_million_tokens.is_above(first.per_million_tokens))


def _of_training(model: str, best: Sequence[CellCost], found: Money) -> Iterator[str]:
    for cost in best[:1]:
        training, group, how = cost.training, short(cost.group, 60), setting_of(cost.subject)
        if training is None or found.tokens is None:
            continue
        price = ""
        if found.prices and training.cost:
            price = f" and {_amount(training.cost, found.prices.currency)}"
        losses = (
            f"at the goodput of {fraction(training.goodput)} that long runs on {group} had"
            if training.goodput
            else f"for steps alone, since no measured long run on {group} is known"
        )
        yield (
            f"{at_sizes(cost.subject)}, {tokens_text(found.tokens)} tokens of {short(model, 60)} take "
            f"{number(training.days.median)} days{price} on {group} with {how}, {losses}."
        )


def tokens_text(tokens: float) -> str:
    """Returns a number of tokens with its usual letter: ``15T``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if tokens >= size:
            return f"{tokens / size:g}{letter}"
    return f"{tokens:g}"


def _pair(found: BreakEven) -> tuple[str, str]:
    return found.baseline, found.other


def _of_pair(beginning: str, members: Sequence[BreakEven], currency: str) -> str:
    first = members[0]
    baseline, other = short(first.baseline, 60), short(first.other, 60)
    prices = [found.price for found in members]
    if len(members) == 1:
        has_interval = is_known(first.low) and is_known(first.high)
        spread = f" (95 %: {number(first.low)} to {number(first.high)})" if has_interval else ""
    else:
        cells = counted(len(members), "cell")
        spread = f" in the median of {cells} ({number(min(prices))} to {number(max(prices))})"
    said = (
        f"{beginning}{'a' if beginning else 'A'} device of {other} is worth {number(median(prices))} "
        f"{currency} an hour{spread} while one of {baseline} costs {number(first.baseline_price)}"
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
        yield f"No price was given for {joined(missing)}: nothing is said of what it costs there."
    if unknown := sorted(given - measured):
        yield f"Prices were given for {joined(unknown)}, of which nothing was measured."
