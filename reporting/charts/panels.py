"""The four-panel comparison shows strategies and groups: step time, throughput, memory, spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from reporting.analysis.findings import CellSummary, Estimate
from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import (
    View,
    best_key,
    groups_of,
    is_measured,
    known,
    recipe_of,
    strategies_of,
)
from reporting.charts.looks import strategy_look
from reporting.charts.marks import (
    ChartPoint,
    beside,
    draw_intervals,
    draw_rectangle,
    leave_empty,
    point_of,
    scale_values,
)
from reporting.charts.sheet import MUTED, Drawing, PanelGrid, panels
from reporting.charts.svg import INK, SURFACE

NAME = "comparison_plot"
_NUMBERS_SIDE_BY_SIDE = 6
_MOST_BESIDE = 2
# What fits into a line of the picture, and what the patch beside a name takes of it.
_MOST_LETTERS, _PATCH_LETTERS = 118, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A cell's place along x: groups stand side by side at their strategy."""

    cell: CellSummary
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bars:
    """One panel of bars. ``estimate`` returns a cell's value in base units, which ``unit`` scales."""

    title: str
    estimate: Callable[[CellSummary], Estimate | None]
    unit: wording.Unit
    places: Sequence[_Place]


def comparison(view: View) -> list[Drawing]:
    """Compares at the recipe and size with the most strategies and groups, or draws nothing if only one was
    measured.
    """
    measured = sorted(
        (cell for cell in view.cells if is_measured(cell)), key=lambda cell: -cell.subject.world_size
    )
    place = best_key(measured, _where, kind=lambda cell: (cell.group, cell.subject.strategy))
    cells = [cell for cell in view.cells if _where(cell) == place]
    if sum(map(is_measured, cells)) < 2:
        return []
    groups, strategies = groups_of(cells), strategies_of(cells)
    shown = [cell for cell in cells if cell.group in groups and cell.subject.strategy in strategies]
    return [_drawing(view, shown, groups, strategies)]


def _where(cell: CellSummary) -> tuple[object, int]:
    return recipe_of(cell.subject), cell.subject.world_size


def _drawing(
    view: View, cells: Sequence[CellSummary], groups: Sequence[str], strategies: Sequence[str]
) -> Drawing:
    has_long_key = _has_long_key(view, cells[0], groups)
    figure, ((times, rates), (memory, spread)) = panels(
        PanelGrid(rows=2, widths=(1, 1), row_height=2.1, gap=0.75, header=0.72 if has_long_key else 0.5)
    )
    places = _places(cells, groups, strategies)
    step_times = [found.median for cell in cells if (found := known(cell.step_time_sec))]
    unit = wording.step_unit(max(step_times, default=1.0))
    _draw_bars(
        view, times, _Bars(title=f"Step time ({unit.name})", estimate=_step_time, unit=unit, places=places)
    )
    count = wording.Unit("", 1.0)
    _draw_bars(
        view,
        rates,
        _Bars(title="Throughput (tokens/s, all devices)", estimate=_rate, unit=count, places=places),
    )
    _draw_bars(
        view, memory, _Bars(title="Peak memory (GB per device)", estimate=_memory, unit=count, places=places)
    )
    num_steps = _draw_spread(view, spread, places, unit)
    for axes in (times, rates, memory, spread):
        axes.set_xticks(range(len(strategies)), [wording.name_of(name, 12) for name in strategies])
        axes.set_xlim(-0.6, len(strategies) - 0.4)
    _head(view, figure, cells[0], groups)
    numbers = [found.num_runs for cell in cells if (found := known(cell.tokens_per_sec))]
    return Drawing(
        name=NAME,
        title="Strategies and groups side by side",
        caption=wording.runs_per_cell(numbers) + _of_spread(num_steps),
        alt=f"Step time, throughput, memory and step-time distribution of {wording.listed(strategies, 6)} "
        f"on {wording.listed([view.titles[group] for group in groups])}.",
        figure=figure,
    )


def _of_spread(num_steps: int) -> str:
    """Says of what the distribution is, where one is drawn."""
    if not num_steps:
        return ""
    return (
        f" The distribution is that of {num_steps:,} single steps: the median, from the 25th to the 75th "
        "percentile (thick) and from the 1st to the 99th (thin)."
    )


def _places(cells: Sequence[CellSummary], groups: Sequence[str], strategies: Sequence[str]) -> list[_Place]:
    """Returns one place for each strategy and group. If several cells share it, the one with the most rows is
    drawn.
    """
    width = min(0.8 / len(groups), 0.5)
    best = {
        (cell.subject.strategy, cell.group): cell for cell in sorted(cells, key=lambda cell: len(cell.rows))
    }
    return [
        _Place(
            cell=cell,
            x=strategies.index(strategy) + (groups.index(group) - (len(groups) - 1) / 2) * width,
            width=0.9 * width,
        )
        for (strategy, group), cell in best.items()
    ]


def _draw_bars(view: View, axes: Axes, bars: _Bars) -> None:
    axes.set_title(bars.title)
    found = [(place, value) for place in bars.places if (value := known(bars.estimate(place.cell)))]
    points = [point_of(place.x, value, bars.unit.size) for place, value in found]
    if not points:
        leave_empty(axes, "not measured")
        return
    # With more bars the numbers would touch each other if they were not turned.
    turned: dict[str, Any] = {"rotation": 90 if len(points) > _NUMBERS_SIDE_BY_SIDE else 0, "ha": "center"}
    for (place, _), point in zip(found, points, strict=True):
        _draw_bar(view, axes, place, point)
        beside(axes, point.x, point.high, wording.short(point.middle), (0, 4), va="bottom", **turned)
    scale_values(axes, 0.0, (1.3 if turned["rotation"] else 1.14) * max(point.high for point in points))
    _draw_statuses(view, axes, bars.places)


def _draw_bar(view: View, axes: Axes, place: _Place, point: ChartPoint) -> None:
    look = view.looks[place.cell.group]
    box = (place.x - place.width / 2, 0.0, place.width, point.middle)
    draw_rectangle(axes, box, look.colour, look.hatch)
    draw_intervals(axes, [point], INK)


def _draw_statuses(view: View, axes: Axes, places: Sequence[_Place]) -> None:
    across = axes.get_xaxis_transform()
    for place in places:
        if place.cell.status != "ok":
            colour = view.looks[place.cell.group].colour
            axes.plot([place.x], [0.05], marker="x", color=colour, markeredgewidth=1.8, transform=across)
            text = wording.name_of(place.cell.status, 14)
            beside(axes, place.x, 0.1, text, (0, 0), xycoords=across, rotation=90, ha="center", va="bottom")


def _draw_spread(view: View, axes: Axes, places: Sequence[_Place], unit: wording.Unit) -> int:
    """Draws the step-time distributions, and returns how many steps were drawn."""
    axes.set_title(f"Step-time distribution ({unit.name})")
    steps = {place.x: _steps(place.cell) / unit.size for place in places}
    for place in places:
        if len(steps[place.x]):
            _draw_box(view, axes, place, steps[place.x])
    drawn = [values for values in steps.values() if len(values)]
    if not drawn:
        leave_empty(axes, "no single steps recorded")
        return 0
    low, high = (
        min(np.percentile(values, 1) for values in drawn),
        max(np.percentile(values, 99) for values in drawn),
    )
    room = 0.08 * (high - low) or 0.05 * high or 1.0
    scale_values(axes, float(low - room), float(high + room))
    _draw_statuses(view, axes, places)
    return sum(map(len, drawn))


def _draw_box(view: View, axes: Axes, place: _Place, steps: np.ndarray) -> None:
    look = view.looks[place.cell.group]
    colour, marker = look.colour, strategy_look(place.cell.subject.strategy).marker
    low, quarter, middle, three_quarters, high = (
        float(value) for value in np.percentile(steps, (1, 25, 50, 75, 99))
    )
    axes.plot([place.x, place.x], [low, high], color=colour, linewidth=1.2)
    axes.plot([place.x, place.x], [quarter, three_quarters], color=colour, linewidth=5, solid_capstyle="butt")
    face, edge = (colour, SURFACE) if look.is_filled else (SURFACE, colour)
    shape: dict[str, Any] = {"marker": marker, "markersize": 6, "color": colour}
    axes.plot([place.x], [middle], markerfacecolor=face, markeredgecolor=edge, **shape)


def _told_of(cell: CellSummary) -> str:
    return f"{recipe_of(cell.subject)}, {counted(cell.subject.world_size, 'device')}"


def _has_long_key(view: View, cell: CellSummary, groups: Sequence[str]) -> bool:
    """Whether the key, of many groups or of long names, needs a line of its own."""
    letters = len(_told_of(cell)) + sum(len(view.titles[group]) + _PATCH_LETTERS for group in groups)
    return len(groups) > _MOST_BESIDE or letters > _MOST_LETTERS


def _head(view: View, figure: Figure, cell: CellSummary, groups: Sequence[str]) -> None:
    inches = figure.get_size_inches()
    below = 0.72 if _has_long_key(view, cell, groups) else 0.5
    where = wording.name_of(_told_of(cell), _MOST_LETTERS)
    figure.text(0.72 / inches[0], 1 - below / inches[1], where, color=MUTED, fontsize=8, va="center")
    handles = [_patch(view, group) for group in groups]
    place = (1 - 0.15 / inches[0], 1 - 0.5 / inches[1])
    figure.legend(
        handles,
        [view.titles[group] for group in groups],
        loc="center right",
        bbox_to_anchor=place,
        ncols=3,
        fontsize=8,
    )


def _patch(view: View, group: str) -> Patch:
    look = view.looks[group]
    face: Any = (look.colour, 0.22) if look.hatch else look.colour
    return Patch(facecolor=face, edgecolor=look.colour, hatch=look.hatch, linewidth=0.8)


def _steps(cell: CellSummary) -> np.ndarray:
    times = np.array([time for row in cell.rows if row.status == "ok" for time in row.raw_step_times])
    steps: np.ndarray = times[np.isfinite(times) & (times > 0)]
    return steps


def _step_time(cell: CellSummary) -> Estimate | None:
    return cell.step_time_sec


def _rate(cell: CellSummary) -> Estimate | None:
    return cell.tokens_per_sec


def _memory(cell: CellSummary) -> Estimate | None:
    if cell.peak_vram_gb is None:
        return None
    return Estimate(median=cell.peak_vram_gb, low=None, high=None, cv=None, num_runs=1)
