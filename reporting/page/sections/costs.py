"""This section says what tokens and trainings cost, and at which price one group is worth another. Pure."""

from collections.abc import Sequence

from reporting.analysis.findings import BreakEven, CellCost, Estimate, Findings, Money, PriceVerdict
from reporting.analysis.formatting import UNKNOWN, fraction, interval, number, short
from reporting.analysis.selection import Origins, costs_shown, origins
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    chip,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_repetition,
    without_unknown,
)

_MOST_CELLS = 60
_MOST_BREAK_EVENS = 60
_TONES: dict[PriceVerdict, str] = {
    "cheaper": "good",
    "dearer": "bad",
    "undecided": "open",
    "too few repeats": "open",
}


def costs(findings: Findings) -> Markup:
    found = findings.money
    if found is None or not found.costs:
        return NOTHING
    known = origins(findings)
    return section("costs", "Money", _break_evens(found, known), _cells(found, known), _basis(found))


def _break_evens(found: Money, known: Origins) -> Markup:
    """Both comparisons' prices, each in a table of its own."""
    if found.prices is None or not (found.break_evens or found.best_break_evens):
        return NOTHING
    currency = found.prices.currency
    same = _break_even_table("break-even", "Measured on both sides", found.break_evens, currency, known)
    best = _break_even_table("best-break-even", "Its best setting", found.best_break_evens, currency, known)
    return together((element("h3", "Break-even price"), same, best))


def _break_even_table(
    label: str, what: str, found: Sequence[BreakEven], currency: str, known: Origins
) -> Markup:
    if not found:
        return NOTHING
    columns = (
        TableColumn(title=what),
        TableColumn(title="Group"),
        TableColumn(title=f"Worth, {currency}/h [95 %]", is_number=True, hint="per device and hour"),
        TableColumn(title="While"),
        TableColumn(title=f"Price, {currency}/h", is_number=True, hint="what was given for the group"),
        TableColumn(title="So its tokens are"),
    )
    shown = found[:_MOST_BREAK_EVENS]
    how = "at the same settings" if label == "break-even" else "each at its best"
    whole = Table(
        label=f"{label}-table",
        caption=f"The price at which a device is worth as much as one of the other group, {how}",
        columns=columns,
        rows=[_break_even(each, known) for each in shown],
    )
    rest = left_out(len(shown), len(found), "break-even price", "findings.json has all")
    return together((table(without_repetition(whole, (1, 3, 4))), rest))


def _break_even(found: BreakEven, known: Origins) -> list[TableCell]:
    flags = known.get((found.other, found.subject), frozenset())
    verdict = chip(found.verdict, _TONES[found.verdict]) if found.verdict else UNKNOWN
    return [
        TableCell(element("span", short(str(found.subject)), class_="setting")),
        TableCell(together((short(found.other, 60), origin_chips(flags)))),
        numeric(number(found.price), found.price, interval(found.low, found.high)),
        TableCell(f"{short(found.baseline, 60)} costs {number(found.baseline_price)}"),
        numeric(number(found.other_price), found.other_price),
        TableCell(verdict),
    ]


def _cells(found: Money, known: Origins) -> Markup:
    currency = found.prices.currency if found.prices else ""
    columns = (
        TableColumn(title="Group"),
        TableColumn(title="Cell"),
        TableColumn(title=f"{currency} per million tokens [95 %]", is_number=True),
        TableColumn(title="At spot price", is_number=True),
        TableColumn(title="kWh per million tokens", is_number=True, hint="energy of the devices alone"),
        TableColumn(title=f"Its energy, {currency}", is_number=True, hint="where a price per kWh was given"),
        TableColumn(title="Days", is_number=True, hint="of the whole training"),
        TableColumn(title=f"Training, {currency} [95 %]", is_number=True),
        TableColumn(title=f"Training at spot price, {currency}", is_number=True),
        TableColumn(title="Training, kWh", is_number=True, hint="of the devices, for steps alone"),
        TableColumn(title="Goodput", is_number=True, hint="that of the group's long runs"),
    )
    shown = costs_shown(found, _MOST_CELLS)
    whole = Table(
        label="cost-table",
        caption="What tokens cost in each measured cell, the cheapest first",
        columns=columns,
        rows=[_cell(each, known) for each in shown],
    )
    rest = left_out(len(shown), len(found.costs), "cell", "findings.json has all")
    return together(
        (element("h3", "Cost of tokens"), table(without_unknown(whole, range(2, len(columns)))), rest)
    )


def _cell(found: CellCost, known: Origins) -> list[TableCell]:
    training = found.training
    return [
        TableCell(
            together(
                (short(found.group, 60), origin_chips(known.get((found.group, found.subject), frozenset())))
            )
        ),
        TableCell(element("span", short(str(found.subject)), class_="setting")),
        _estimated(found.per_million_tokens),
        _estimated(found.spot_per_million_tokens),
        numeric(number(found.kwh_per_million_tokens), found.kwh_per_million_tokens),
        numeric(number(found.energy_per_million_tokens), found.energy_per_million_tokens),
        _estimated(training.days if training else None),
        _estimated(training.cost if training else None),
        _estimated(training.spot_cost if training else None),
        numeric(number(training.kwh if training else None), training.kwh if training else None),
        numeric(fraction(training.goodput if training else None), training.goodput if training else None),
    ]


def _estimated(found: Estimate | None) -> TableCell:
    if found is None:
        return numeric(UNKNOWN, None)
    return numeric(number(found.median), found.median, interval(found.low, found.high))


def _basis(found: Money) -> Markup:
    said = [
        "Costs per token are at the speed of measured steps. ",
        "A break-even price is the other group's price times the ratio of throughputs per device. ",
    ]
    if found.tokens is not None:
        said.append(
            "Days and costs of a training include the goodput of the group's long runs where one is known, "
            "simulated ones apart; else they are those of steps alone. "
        )
    said.append("Prices are those that were given for this report; no result holds them.")
    return note("".join(said))
