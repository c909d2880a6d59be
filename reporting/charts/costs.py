"""This chart shows what a million tokens cost: a dot and its interval for each of the cheapest cells."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reporting.analysis.findings import CellCost, Estimate, Money
from reporting.analysis.selection import costs_shown
from reporting.charts import wording
from reporting.charts.choice import NAMES_MEAN, View, differing_names, known, left_out, same_for_all
from reporting.charts.looks import strategy_look
from reporting.charts.marks import beside, write_above
from reporting.charts.sheet import FAINT, Drawing, PanelGrid, panels
from reporting.charts.svg import INK, SURFACE

_MOST_DOTS = 20


def costs(view: View, money: Money | None) -> list[Drawing]:
    """Draws nothing where no price was given, or where a single cell has one."""
    if money is None or money.prices is None:
        return []
    priced = [cost for cost in costs_shown(money, len(money.costs)) if known(cost.per_million_tokens)]
    shown = priced[:_MOST_DOTS]
    if len(shown) < 2:
        return []
    currency, names = money.prices.currency, differing_names(cost.subject for cost in shown)
    labels = [f"{view.titles.get(cost.group, cost.group)} {names[cost.subject]}" for cost in shown]
    grid = PanelGrid(
        row_height=0.35 + 0.19 * len(shown), left=0.25 + 0.064 * max(map(len, labels)), right=0.7
    )
    figure, ((axes,),) = panels(grid)
    _draw(view, axes, shown, labels)
    axes.set_xlabel(f"{currency} per million tokens")
    write_above(axes, same_for_all(cost.subject for cost in shown), up=8)
    first = shown[0]
    return [
        Drawing(
            name="cost_per_token",
            title="What a million tokens cost",
            caption=f"The prices that were given, in {currency} per device and hour, at the speed of "
            "measured steps; the cheapest first, with 95 % intervals where there are enough runs."
            + NAMES_MEAN
            + left_out(len(shown), len(view.cells), "the cheapest of those with a price"),
            alt=f"Cost of a million tokens in {len(shown)} cells; least on {labels[0]}: "
            f"{wording.short(_cost(first).median)} {currency}.",
            figure=figure,
        )
    ]


def _cost(found: CellCost) -> Estimate:
    assert found.per_million_tokens, "only cells with a price are drawn"
    return found.per_million_tokens


def _draw(view: View, axes: Axes, shown: Sequence[CellCost], labels: Sequence[str]) -> None:
    highest = 0.0
    for row, cost in enumerate(shown):
        found, look = _cost(cost), view.looks.get(cost.group)
        colour: Any = look.colour if look else INK
        low, high = (bound if bound else found.median for bound in (found.low, found.high))
        highest = max(highest, high)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.4)
        face = colour if look is None or look.is_filled else SURFACE
        marker = strategy_look(cost.subject.strategy).marker
        axes.plot([found.median], [row], marker=marker, markerfacecolor=face, color=colour)
        beside(axes, high, row, wording.short(found.median), (6, 0), va="center")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_xlim(0, 1.08 * highest)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), labels)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))
