"""The front shows throughput against memory, and which cells are beaten in neither by another cell."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from reporting.analysis.findings import CellSummary, Subject
from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import (
    NAMES_MEAN,
    View,
    best_key,
    differing_names,
    groups_of,
    known,
    left_out,
    richest,
    strategies_of,
)
from reporting.charts.looks import strategy_look
from reporting.charts.marks import Label, draw_key, label_points, line_style, scale_values, write_above
from reporting.charts.sheet import Drawing, PanelGrid, panels, width_for
from reporting.charts.svg import SURFACE

_MOST_POINTS = 150
_MOST_MODELS = 3


def front(view: View) -> list[Drawing]:
    """Draws a panel for each model, at the sequence length and number of devices with the most cells."""
    measured = [cell for cell in view.cells if _place(cell)]
    groups, strategies = groups_of(measured), strategies_of(measured)
    usual = [cell for cell in measured if cell.group in groups and cell.subject.strategy in strategies]
    models = richest((cell.subject.model for cell in usual), _MOST_MODELS)
    own = [_of_model(view, [cell for cell in usual if cell.subject.model == model]) for model in models]
    num_shown = sum(map(len, own))
    if num_shown < 2:
        return []
    figure, (row,) = panels(_grid(view, groups, strategies, len(models)))
    for axes, cells in zip(row, own, strict=True):
        _draw_front(view, axes, cells)
    row[0].set_ylabel("tokens/s per device")
    draw_key(row[-1], strategies, [(view.titles[group], view.looks[group]) for group in groups])
    best = sum(cell.cell_id in view.pareto for cells in own for cell in cells)
    return [
        Drawing(
            name="throughput_memory_pareto",
            title="Throughput against memory",
            caption="Every point is a cell. Full colour and a line: nothing of that group is faster with "
            "less memory. Up and to the left is better."
            + NAMES_MEAN
            + left_out(num_shown, len(view.cells), "measured at the commonest length and number of devices"),
            alt=f"Throughput per device against peak memory of {counted(num_shown, 'cell')}; "
            f"nothing beats {best:,} of them in both.",
            figure=figure,
        )
    ]


def _grid(view: View, groups: Sequence[str], strategies: Sequence[str], num_models: int) -> PanelGrid:
    """Leaves room for the key on the right."""
    names = [wording.name_of(name, 16) for name in strategies] + [view.titles[group] for group in groups]
    right = 0.75 + 0.068 * max(map(len, names))
    width = width_for(num_models + 1)
    return PanelGrid(widths=(1.0,) * num_models, width=width, right=right, row_height=2.9, gap=0.65)


def _of_model(view: View, cells: Sequence[CellSummary]) -> list[CellSummary]:
    """Returns the cells at one sequence length and number of devices, because fronts only compare there.
    Cells of the front come first, then the fastest.
    """
    where = best_key(cells, _where, kind=lambda cell: cell.cell_id)
    chosen = [cell for cell in cells if _where(cell) == where]
    rates = {cell.cell_id: place[1] for cell in chosen if (place := _place(cell))}
    chosen.sort(key=lambda cell: (cell.cell_id not in view.pareto, -rates[cell.cell_id], cell.cell_id))
    return chosen[:_MOST_POINTS]


def _where(cell: CellSummary) -> tuple[int, int]:
    return cell.subject.seq_len, cell.subject.world_size


def _place(cell: CellSummary) -> tuple[float, float] | None:
    rate, used = known(cell.tokens_per_sec_per_device), cell.peak_vram_gb
    if rate is None or used is None or not wording.is_number(used) or used <= 0:
        return None
    return used, rate.median


def _draw_front(view: View, axes: Axes, cells: Sequence[CellSummary]) -> None:
    places = [_place(cell) or (0.0, 0.0) for cell in cells]
    lowest, highest = min(y for _, y in places), max(y for _, y in places)
    span = highest - lowest or highest
    scale_values(axes, max(0.0, lowest - 0.25 * span), highest + 0.15 * span)
    axes.set_xlim(0, 1.08 * max(x for x, _ in places))
    axes.set_xlabel("peak memory (GB per device)")
    for cell, place in zip(cells, places, strict=True):
        _draw_point(view, axes, cell, place)
    first = cells[0].subject
    axes.set_title(wording.model_of(first.model))
    write_above(axes, f"{first.seq_len:,} tokens, {counted(first.world_size, 'device')}")
    names = differing_names(cell.subject for cell in cells)
    best = [(cell, place) for cell, place in zip(cells, places, strict=True) if cell.cell_id in view.pareto]
    labels = [label for group in view.looks for label in _draw_line(view, axes, group, best, names)]
    label_points(axes, labels, places)


def _draw_point(view: View, axes: Axes, cell: CellSummary, place: tuple[float, float]) -> None:
    look, is_front = view.looks[cell.group], cell.cell_id in view.pareto
    marker = strategy_look(cell.subject.strategy).marker
    settings: dict[str, Any] = {"marker": marker, "color": look.colour, "zorder": 3 + is_front}
    settings |= {"alpha": 1.0 if is_front else 0.3, "markersize": 6 if is_front else 5}
    face = look.colour if look.is_filled else SURFACE
    axes.plot([place[0]], [place[1]], markerfacecolor=face, **settings)


def _draw_line(
    view: View,
    axes: Axes,
    group: str,
    best: Sequence[tuple[CellSummary, tuple[float, float]]],
    names: Mapping[Subject, str],
) -> list[Label]:
    """Draws a line through the front of ``group``, and returns labels for the line's two ends."""
    own = sorted((place, cell.subject) for cell, place in best if cell.group == group)
    xs, ys = [x for (x, _), _ in own], [y for (_, y), _ in own]
    style: dict[str, Any] = {"linestyle": line_style(view.looks[group]), "linewidth": 1, "zorder": 2}
    axes.plot(xs, ys, color=view.looks[group].colour, alpha=0.6, **style)
    ends = own[:: max(len(own) - 1, 1)]
    return [
        Label(x=x, y=y, text=names[subject], colour=view.looks[group].colour)
        for (x, y), subject in reversed(ends)
    ]
