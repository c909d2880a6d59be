"""These functions write the part of ``report.md`` about money. Pure."""

from collections.abc import Iterator, Sequence

from reporting.analysis.findings import BreakEven, CellCost, Estimate, Findings
from reporting.analysis.formatting import interval, number, plain
from reporting.analysis.selection import Origins, costs_shown, origins
from reporting.markdown.parts import left_out, origin, raw, table

_MOST_BREAK_EVENS = 20
_MOST_CELLS = 10


def costs(findings: Findings) -> Iterator[str]:
    found = findings.money
    if found is None or not found.costs:
        return
    known, currency = origins(findings), found.prices.currency if found.prices else ""
    yield "## Money"
    yield from _break_evens("measured on both sides", found.break_evens, currency, known)
    if found.best_break_evens:
        yield "Each at its best:"
    yield from _break_evens("its best setting", found.best_break_evens, currency, known)
    cells = costs_shown(found, _MOST_CELLS)
    heads = (
        "group",
        "cell",
        f"{currency} per million tokens [95 %]".strip(),
        "kWh",
        "training, days",
        "training",
    )
    yield table(heads, "llrrrr", [_cell(each, known) for each in cells])
    yield from left_out(len(cells), len(found.costs), "cell")


def _break_evens(what: str, found: Sequence[BreakEven], currency: str, known: Origins) -> Iterator[str]:
    if not found:
        return
    shown = found[:_MOST_BREAK_EVENS]
    heads = (what, "group", f"worth, {currency}/h [95 %]", "while", "price", "tokens are")
    yield table(heads, "llrlrl", [_break_even(each, known) for each in shown])
    yield from left_out(len(shown), len(found), "break-even price")


def _break_even(found: BreakEven, known: Origins) -> list[str]:
    mark = origin(known.get((found.other, found.subject), frozenset()))
    return [
        plain(str(found.subject)),
        f"{plain(found.other, 40)}{mark}",
        f"{number(found.price)} {interval(found.low, found.high)}".rstrip(),
        f"{plain(found.baseline, 40)} costs {number(found.baseline_price)}",
        number(found.other_price),
        found.verdict or "–",
    ]


def _cell(found: CellCost, known: Origins) -> list[str]:
    training = found.training
    return [
        f"{plain(found.group, 40)}{origin(known.get((found.group, found.subject), frozenset()))}",
        plain(str(found.subject)),
        _estimated(found.per_million_tokens),
        raw(number(found.kwh_per_million_tokens)),
        _estimated(training.days if training else None),
        _estimated(training.cost if training else None),
    ]


def _estimated(found: Estimate | None) -> str:
    return f"{number(found.median)} {interval(found.low, found.high)}".rstrip() if found else number(None)
