"""This chart shows how close each cell came to its device's memory, and which cells ran out of it."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from reporting.analysis.findings import CellSummary, Subject
from reporting.charts import wording
from reporting.charts.choice import NAMES_MEAN, View, differing_names, groups_of, left_out, same_for_all
from reporting.charts.marks import beside, draw_rectangle, write_above
from reporting.charts.sheet import FAINT, Drawing, PanelGrid, panels, width_for
from reporting.charts.svg import INK

_MOST_BARS = 14
_MOST_LONG_BARS = 8
_LONG_NAME = 18


def memory_limit(view: View) -> list[Drawing]:
    """Draws the cells nearest to the limit of their device, those beyond the limit first."""
    known_memory = [cell for cell in view.cells if _used(cell)]
    groups = groups_of(known_memory)
    if not groups:
        return []
    own = {group: _nearest([cell for cell in known_memory if cell.group == group]) for group in groups}
    names = differing_names(cell.subject for cells in own.values() for cell in cells)
    if _are_long(names.values()):
        own = {group: cells[:_MOST_LONG_BARS] for group, cells in own.items()}
    shown = [cell for cells in own.values() for cell in cells]
    figure, places = _places(own, names)
    for axes, group in zip(places, groups, strict=True):
        _draw_limit(view, axes, group, own[group], [names[cell.subject] for cell in own[group]])
    write_above(places[0], same_for_all(cell.subject for cell in shown), up=29)
    return [
        Drawing(
            name="memory_vs_limit",
            title="Peak memory against the device's limit",
            caption="The line is the device's memory (1 GB = 1e9 bytes), the tick what was predicted "
            "before the run; crossed bars ran out of memory."
            + NAMES_MEAN
            + left_out(len(shown), len(view.cells), "those nearest to the limit"),
            alt="Peak memory per device. "
            + " ".join(_nearest_in_words(view, group, own[group]) for group in groups),
            figure=figure,
        )
    ]


def _places(
    own: Mapping[str, Sequence[CellSummary]], names: Mapping[Subject, str]
) -> tuple[Figure, list[Axes]]:
    """Places groups side by side, or one above another if names are long."""
    left = 0.25 + 0.066 * max(map(len, names.values()))
    height = 0.35 + 0.17 * max(map(len, own.values()))
    if _are_long(names.values()):
        grid = PanelGrid(rows=len(own), row_height=height, row_gap=1.0, left=left, right=0.5, header=0.6)
    else:
        columns, width = (1.0,) * len(own), width_for(len(own))
        grid = PanelGrid(
            widths=columns, width=width, row_height=height, left=left, gap=left, right=0.4, header=0.6
        )
    figure, rows = panels(grid)
    return figure, [axes for row in rows for axes in row]


def _are_long(names: Iterable[str]) -> bool:
    return max(map(len, names)) > _LONG_NAME


def _used(cell: CellSummary) -> float | None:
    """Returns the measured memory, or the predicted memory of a cell that ran out of memory unmeasured."""
    for value in (cell.peak_vram_gb, cell.predicted_gb if cell.status == "oom" else None):
        if value is not None and wording.is_number(value) and value > 0:
            return value
    return None


def _capacity(cell: CellSummary) -> float | None:
    found = cell.device_memory_gb
    return found if found is not None and wording.is_number(found) and found > 0 else None


def _nearest(cells: Sequence[CellSummary]) -> list[CellSummary]:
    return sorted(cells, key=lambda cell: (-_share(cell), cell.subject))[:_MOST_BARS]


def _share(cell: CellSummary) -> float:
    return (_used(cell) or 0.0) / (_capacity(cell) or 1e6)


def _draw_limit(
    view: View, axes: Axes, group: str, cells: Sequence[CellSummary], names: Sequence[str]
) -> None:
    limit = max((_capacity(cell) or 0.0 for cell in cells), default=0.0)
    for row, cell in enumerate(cells):
        _draw_memory_bar(view, axes, row, cell)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    highest = max([limit, *(max(_used(cell) or 0.0, _predicted(cell)) for cell in cells)])
    axes.set_xlim(0, 1.08 * highest)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.set_yticks(range(len(cells)), names)
    axes.set_xlabel("GB per device")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))
    if limit:
        axes.axvline(limit, color=INK, linewidth=1.2)
        across = axes.get_xaxis_transform()
        beside(axes, limit, 1, f"{wording.short(limit)} GB", (0, 2), xycoords=across, ha="center")
    axes.set_title(view.titles[group], pad=14)


def _draw_memory_bar(view: View, axes: Axes, row: int, cell: CellSummary) -> None:
    colour, used = view.looks[cell.group].colour, _used(cell) or 0.0
    is_out = cell.status == "oom"
    hatch = "xxxx" if is_out else view.looks[cell.group].hatch
    draw_rectangle(axes, (0.0, row - 0.35, used, 0.7), colour, hatch)
    if predicted := _predicted(cell):
        axes.plot([predicted], [row], marker="|", markersize=9, markeredgewidth=1.4, color=INK)
    if is_out:
        beside(axes, max(used, _predicted(cell)), row, "oom", (5, 0), va="center", color=colour)


def _predicted(cell: CellSummary) -> float:
    found = cell.predicted_gb
    return found if found is not None and wording.is_number(found) else 0.0


def _nearest_in_words(view: View, group: str, cells: Sequence[CellSummary]) -> str:
    first, limit = cells[0], _capacity(cells[0])
    what = "out of memory with" if first.status == "oom" else "at most"
    of = f" of {wording.short(limit)}" if limit else ""
    used = f"{wording.short(_used(first) or 0.0)}{of} GB ({wording.name_of(first.subject.strategy, 12)})"
    return f"{view.titles[group]}: {what} {used}."
