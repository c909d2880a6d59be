"""The first picture: a dot and its interval for each comparison of two groups, at the same settings and each
at its best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reporting.analysis.findings import FIRST_CHART, Comparison, Findings, MatchUp
from reporting.analysis.formatting import counted, is_known
from reporting.analysis.selection import most_relevant
from reporting.analysis.statistics import THRESHOLD
from reporting.charts import wording
from reporting.charts.choice import NAMES_MEAN, View, differing_names, same_for_all
from reporting.charts.marks import beside, fitting, write_above
from reporting.charts.sheet import FAINT, MUTED, Drawing, PanelGrid, panels
from reporting.charts.svg import INK, SURFACE

_MOST_PAIRS = 3
_MOST_DOTS = 14

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    label: str
    found: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """The dots of one of the two comparisons. ``same`` is what all of its names have in common."""

    title: str
    dots: Sequence[_Dot]
    same: str

    @property
    def left(self) -> float:
        """Room for the names, in inches."""
        return 0.2 + 0.064 * max((len(dot.label) for dot in self.dots), default=0)


def verdicts(view: View, findings: Findings) -> list[Drawing]:
    """Draws a picture for each of the first pairs of groups that have at least one ratio."""
    pairs = dict.fromkeys(
        (one.baseline, one.other)
        for one in (*findings.comparisons, *(each.comparison for each in findings.at_best))
        if is_known(one.ratio)
    )
    return [_drawing(view, findings, pair, number) for number, pair in enumerate(list(pairs)[:_MOST_PAIRS])]


def _drawing(view: View, findings: Findings, pair: tuple[str, str], number: int) -> Drawing:
    shown = [panel for panel in (_same(findings, pair), _best(findings, pair)) if panel.dots]
    most = max(len(panel.dots) for panel in shown)
    left, gap = shown[0].left, shown[-1].left + 0.5
    grid = PanelGrid(
        widths=(1.0,) * len(shown),
        row_height=0.45 + 0.2 * most,
        header=0.62,
        left=left,
        gap=gap,
        right=0.5,
        width=9.6,
    )
    figure, (row,) = panels(grid)
    price = _price_of(findings, pair[0])
    reach = _reach([dot.found for panel in shown for dot in panel.dots], findings, pair)
    for axes, panel in zip(row, shown, strict=True):
        _draw(view, axes, panel, pair, reach, most)
        if price:
            _draw_price(findings, axes, pair, price)
    names = [view.titles.get(group, group) for group in pair]
    num_left_out = _num_known(findings, pair) - sum(len(panel.dots) for panel in shown)
    return Drawing(
        name=FIRST_CHART if number == 0 else f"{FIRST_CHART}_{number + 1}",
        title=f"{wording.name_of(names[1], 30)} beside {wording.name_of(names[0], 30)}",
        caption=f"Each dot is the tokens/s of {names[1]} over those of {names[0]}, with its 95 % interval; "
        f"it is full if that is decided. Right of 1 {names[1]} is faster. Within the grey band, "
        f"{100 * THRESHOLD:.0f} % wide on both sides, they are equivalent."
        + (_price_caption(findings, pair) if price else "")
        + NAMES_MEAN
        + (f" {counted(num_left_out, 'comparison')} more: see the table." if num_left_out else ""),
        alt=f"Ratios of {names[1]} to {names[0]}: "
        + "; ".join(f"{panel.title}, {counted(len(panel.dots), 'dot')}" for panel in shown)
        + ".",
        figure=figure,
    )


def _num_known(findings: Findings, pair: tuple[str, str]) -> int:
    at_best = (each.comparison for each in findings.at_best)
    return sum(_of(one, pair) for one in (*findings.comparisons, *at_best))


def _same(findings: Findings, pair: tuple[str, str]) -> _Panel:
    found = _shown([one for one in findings.comparisons if _of(one, pair)], lambda one: one)
    names = differing_names(one.subject for one in found)
    return _Panel(
        title="The same settings",
        dots=[_Dot(label=names[one.subject], found=one) for one in found],
        same=same_for_all(one.subject for one in found),
    )


def _best(findings: Findings, pair: tuple[str, str]) -> _Panel:
    """Names leave the settings out, which are each group's own."""
    of_pair = [each for each in findings.at_best if _of(each.comparison, pair)]
    found = _shown(of_pair, lambda each: each.comparison)
    parts = [_question(each) for each in found]
    differ = [len(set(values)) > 1 for values in zip(*parts, strict=True)]
    return _Panel(
        title="Each at its best",
        dots=[
            _Dot(label=" ".join(compress(own, differ)), found=each.comparison)
            for own, each in zip(parts, found, strict=True)
        ],
        same=", ".join(compress(parts[0], (not one for one in differ))) if parts else "",
    )


def _of(found: Comparison, pair: tuple[str, str]) -> bool:
    return (found.baseline, found.other) == pair and is_known(found.ratio)


def _shown(found: Sequence[Item], comparison: Callable[[Item], Comparison]) -> Sequence[Item]:
    """Chooses first what says who is faster."""
    return most_relevant(found, _MOST_DOTS, lambda one: comparison(one).verdict not in ("faster", "slower"))


def _question(found: MatchUp) -> tuple[str, ...]:
    subject = found.baseline.subject
    return (
        wording.model_of(subject.model, 18),
        f"x{subject.world_size}",
        f"S{subject.seq_len}",
        wording.name_of(subject.precision, 8),
        f"{found.sequences} seq/step",
    )


def _reach(found: Sequence[Comparison], findings: Findings, pair: tuple[str, str]) -> float:
    """How far from 1 the axis reaches; the same in both panels. It holds the ratio of prices if it can."""
    bounds = [value for one in found for value in (one.ratio, one.low, one.high) if is_known(value)]
    reach = max([abs(value - 1) for value in bounds] + [2 * THRESHOLD])
    ours, theirs = _price_of(findings, pair[0]), _price_of(findings, pair[1])
    if ours and theirs is not None and abs(theirs / ours - 1) < 3 * reach:
        reach = max(reach, abs(theirs / ours - 1))
    return min(4.0, 1.12 * reach)


def _draw(view: View, axes: Axes, panel: _Panel, pair: tuple[str, str], reach: float, num_rows: int) -> None:
    axes.axvspan(1 - THRESHOLD, 1 + THRESHOLD, color=FAINT, linewidth=0)
    axes.axvline(1.0, color=MUTED, linewidth=1.0)
    # Before the dots: the number of one whose interval is cut stands at the edge.
    axes.set_xlim(max(0.0, 1 - reach), 1 + reach)
    for row, dot in enumerate(panel.dots):
        _draw_dot(view, axes, row, dot, pair)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.set_yticks(range(len(panel.dots)), [dot.label for dot in panel.dots])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axes.set_title(panel.title, pad=34)
    write_above(axes, wording.name_of(panel.same, fitting(axes)) if panel.same else "", up=21)
    sides = [f"{view.titles.get(group, wording.name_of(group, 18))} faster" for group in pair]
    is_long = len("  |  ".join(sides)) > fitting(axes)
    axes.set_xlabel(" |\n".join(sides) if is_long else "  |  ".join(sides))


def _draw_dot(view: View, axes: Axes, row: int, dot: _Dot, pair: tuple[str, str]) -> None:
    found = dot.found
    assert found.ratio is not None, "only comparisons with a ratio are drawn"
    faster = pair[1] if found.ratio >= 1 else pair[0]
    colour = view.looks[faster].colour if faster in view.looks else INK
    if is_known(found.low) and is_known(found.high):
        axes.plot([found.low, found.high], [row, row], color=colour, linewidth=1.8)
    face = colour if found.verdict in ("faster", "slower", "equivalent") else SURFACE
    axes.plot([found.ratio], [row], marker="o", color=colour, markerfacecolor=face, markeredgewidth=1.2)
    end = max(value for value in (found.high, found.ratio) if is_known(value))
    beside(axes, min(end, axes.get_xlim()[1]), row, f"{found.ratio:.2f}", (5, 0), va="center", fontsize=7.5)


def _price_of(findings: Findings, group: str) -> float | None:
    """The group's price per device and hour, where somebody gave it."""
    prices = findings.money.prices.groups if findings.money and findings.money.prices else ()
    return next((one.per_device_hour for one in prices if one.group == group), None)


def _draw_price(findings: Findings, axes: Axes, pair: tuple[str, str], price: float) -> None:
    """Adds an axis of break-even prices at the top, and a line at the price that the other group has."""
    scale: Any = (lambda ratio: ratio * price, lambda value: value / price)
    above = axes.secondary_xaxis("top", functions=scale)
    above.tick_params(length=0, labelsize=7, labelcolor=MUTED, pad=1)
    above.spines["top"].set_visible(False)
    own = _price_of(findings, pair[1])
    if own is not None:
        axes.axvline(own / price, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))


def _price_caption(findings: Findings, pair: tuple[str, str]) -> str:
    assert findings.money and findings.money.prices
    currency = findings.money.prices.currency
    line = "; the dashed line is its price" if _price_of(findings, pair[1]) is not None else ""
    return (
        f" Upper axis: at which price in {currency} per hour a device of {pair[1]} is worth as much as "
        f"one of {pair[0]}{line}."
    )
