"""Curves run over the number of devices: one row per recipe, one panel per group, one line per strategy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from reporting.analysis.findings import CellSummary, Estimate
from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import (
    Recipe,
    View,
    curve_recipes,
    groups_of,
    known,
    left_out,
    recipe_of,
    strategies_of,
)
from reporting.charts.marks import (
    ChartPoint,
    Label,
    draw_failures,
    draw_line,
    label_ends,
    point_of,
    range_far,
    rule,
    scale_sizes,
    scale_values,
    write,
    write_above,
)
from reporting.charts.sheet import Drawing, PanelGrid, panels, width_for
from reporting.charts.svg import INK

_FEWEST_SIZES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure is what one chart over devices shows. ``note`` is what a reader needs to know about it."""

    name: str
    title: str
    axis: str
    value: Callable[[CellSummary], Estimate | None]
    note: str = ""
    is_total: bool = False
    is_time: bool = False
    is_percentage: bool = False
    has_intervals: bool = True


MEASURES = (
    Measure(
        name="tokens_per_sec_vs_gpu",
        title="Throughput over devices",
        axis="tokens/s, all devices",
        value=lambda cell: cell.tokens_per_sec,
        note="The dotted line is perfect scaling of the fastest cell on the fewest devices.",
        is_total=True,
    ),
    Measure(
        name="step_time_vs_gpu",
        title="Step time over devices",
        axis="optimizer step",
        value=lambda cell: cell.step_time_sec,
        note="At the same work per device, a flat line is perfect.",
        is_time=True,
    ),
    Measure(
        name="scaling_efficiency",
        title="Weak scaling efficiency",
        axis="efficiency (%)",
        value=lambda cell: _exact(cell, cell.scaling_efficiency_pct),
        note="Throughput per device relative to the smallest number of devices; the dotted line is ideal.",
        is_percentage=True,
        has_intervals=False,
    ),
    Measure(
        name="gbps_vs_gpu",
        title="Copies from host to device",
        axis="GB/s per device",
        value=lambda cell: _exact(cell, cell.h2d_gbps_per_gpu),
        note="Bytes really copied over the time of the copies.",
        has_intervals=False,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """The cells of one recipe. Values are divided by ``unit`` for the axis."""

    measure: Measure
    recipe: Recipe
    cells: list[CellSummary]
    unit: wording.Unit

    @property
    def is_per_device(self) -> bool:
        """Whether to draw totals per device: over a wide range of sizes all totals would look like
        one line.
        """
        return self.measure.is_total and range_far(self.sizes)

    @property
    def sizes(self) -> list[int]:
        return sorted({cell.subject.world_size for cell in self.cells})

    def points(self, group: str, strategy: str) -> list[ChartPoint]:
        """Returns points by size. If several cells have one subject, the one with the most runs is drawn."""
        best: dict[int, tuple[int, Estimate]] = {}
        for cell in self.cells:
            found = known(self.measure.value(cell))
            if found and (cell.group, cell.subject.strategy) == (group, strategy):
                size = cell.subject.world_size
                if size not in best or best[size][0] < found.num_runs:
                    best[size] = found.num_runs, found
        return [
            point_of(size, found, self.unit.size * (size if self.is_per_device else 1))
            for size, (_, found) in sorted(best.items())
        ]


def curves(view: View) -> list[Drawing]:
    """Draws each measure for which there are values at two numbers of devices or more: a point alone is no
    curve.
    """
    recipes = curve_recipes(view.cells)
    chosen = [cell for cell in view.cells if recipe_of(cell.subject) in recipes]
    groups, strategies = groups_of(chosen), strategies_of(chosen)
    shown = [cell for cell in chosen if cell.group in groups and cell.subject.strategy in strategies]
    drawings = (_drawing(measure, view, recipes, shown) for measure in MEASURES)
    return [drawing for drawing in drawings if drawing]


def _drawing(
    measure: Measure, view: View, recipes: Sequence[Recipe], shown: Sequence[CellSummary]
) -> Drawing | None:
    rows = [row for recipe in recipes if (row := _row(measure, recipe, shown))]
    if not rows:
        return None
    groups = groups_of(shown)
    longest = max(len(wording.name_of(name, 12)) for name in strategies_of(shown))
    room = 0.3 + 0.07 * longest
    grid = PanelGrid(
        rows=len(rows),
        widths=(1.0,) * len(groups),
        width=width_for(len(groups)),
        right=room,
        gap=room + 0.05,
        row_gap=1.0,
    )
    figure, panel_rows = panels(grid)
    for row, axes in zip(rows, panel_rows, strict=True):
        _draw_row(view, row, dict(zip(groups, axes, strict=True)))
    numbers = [found.num_runs for row in rows for cell in row.cells if (found := known(cell.tokens_per_sec))]
    return Drawing(
        name=measure.name,
        title=measure.title,
        caption=f"{measure.note} {wording.runs_per_cell(numbers, has_intervals=measure.has_intervals)}"
        + left_out(len(shown), len(view.cells), "of each model and length the recipe with most points"),
        alt=f"{measure.title}. {_ends(view, rows[0], groups)}",
        figure=figure,
    )


def _row(measure: Measure, recipe: Recipe, shown: Sequence[CellSummary]) -> _Row | None:
    cells = [cell for cell in shown if recipe_of(cell.subject) == recipe]
    measured = [(cell, found.median) for cell in cells if (found := known(measure.value(cell)))]
    values = [value for _, value in measured]
    if len({cell.subject.world_size for cell, _ in measured}) < _FEWEST_SIZES:
        return None
    unit = wording.step_unit(max(values)) if measure.is_time else wording.Unit("", 1.0)
    return _Row(measure=measure, recipe=recipe, cells=cells, unit=unit)


def _draw_row(view: View, row: _Row, panel_of: dict[str, Axes]) -> None:
    strategies = strategies_of(row.cells)
    points = {(group, strategy): row.points(group, strategy) for group in panel_of for strategy in strategies}
    low, high = _range(row, [point for line in points.values() for point in line])
    for group, axes in panel_of.items():
        scale_sizes(axes, row.sizes)
        scale_values(axes, low, high)
        lines = {strategy: points[group, strategy] for strategy in strategies if points[group, strategy]}
        _draw_panel(view, row, group, axes, lines)
    _name_axes(row, list(panel_of.values()))


def _draw_panel(view: View, row: _Row, group: str, axes: Axes, lines: dict[str, list[ChartPoint]]) -> None:
    for strategy, line in lines.items():
        draw_line(axes, line, strategy, view.looks[group])
    _draw_ideal(axes, row, [point for line in lines.values() for point in line])
    colour = view.looks[group].colour
    label_ends(axes, [_label(strategy, line[-1], colour) for strategy, line in lines.items()])
    failed = [cell for cell in row.cells if cell.group == group and cell.status != "ok"]
    marks = [(cell.subject.world_size, cell.subject.strategy, cell.status) for cell in failed]
    draw_failures(axes, marks, colour)
    axes.set_title(view.titles[group])
    if not lines:
        write(axes, "nothing measured")


def _draw_ideal(axes: Axes, row: _Row, points: list[ChartPoint]) -> None:
    if row.measure.is_percentage:
        rule(axes, 100.0)
    if row.measure.is_total and points:
        first, last, start, end = _ideal(row, points)
        dots: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (1, 2)), "zorder": 1}
        axes.plot([first, last], [start, end], color=(INK, 0.45), **dots)


def _ideal(row: _Row, points: list[ChartPoint]) -> tuple[float, float, float, float]:
    """Returns the ideal line's ends: the best value at the smallest size, scaled to the largest size."""
    first, last = min(point.x for point in points), max(point.x for point in points)
    start = max(point.middle for point in points if point.x == first)
    return first, last, start, start if row.is_per_device else start * last / first


def _range(row: _Row, points: list[ChartPoint]) -> tuple[float, float]:
    highs = [point.high for point in points]
    lowest = min(point.middle for point in points)
    if row.measure.is_percentage:
        return max(0.0, 10 * (lowest // 10) - 10), max(105.0, 1.03 * max(highs))
    if row.measure.is_total:
        highs += _ideal(row, points)[2:]
    return 0.0, 1.06 * max(highs)


def _name_axes(row: _Row, panels_of_row: list[Axes]) -> None:
    first = panels_of_row[0]
    axis = "tokens/s per device" if row.is_per_device else row.measure.axis
    first.set_ylabel(f"{axis} ({row.unit.name})" if row.unit.name else axis)
    write_above(first, str(row.recipe))
    for axes in panels_of_row[1:]:
        axes.tick_params(labelleft=False)


def _label(strategy: str, end: ChartPoint, colour: str) -> Label:
    return Label(x=end.x, y=end.middle, text=wording.name_of(strategy, 12), colour=colour)


def _ends(view: View, row: _Row, groups: Sequence[str]) -> str:
    """Describes the end of every line in words, for readers who can't see the picture."""
    found = []
    for group in groups:
        lines = {name: row.points(group, name) for name in strategies_of(row.cells)}
        ends = [
            f"{wording.name_of(name, 12)} {_value(row, line[-1])}" for name, line in lines.items() if line
        ]
        found.append(f"{view.titles[group]}: {'; '.join(ends) or 'nothing measured'}.")
    return " ".join(found)


def _value(row: _Row, point: ChartPoint) -> str:
    value = f"{wording.short(point.middle)} {row.unit.name}".strip()
    return f"{value} at {counted(int(point.x), 'device')}"


def _exact(cell: CellSummary, value: float | None) -> Estimate | None:
    """Makes an estimate without an interval, of as many runs as the cell's throughput has."""
    if value is None:
        return None
    num_runs = cell.tokens_per_sec.num_runs if cell.tokens_per_sec else 1
    return Estimate(median=value, low=None, high=None, cv=None, num_runs=num_runs)
