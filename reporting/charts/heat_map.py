"""The heat map shows strategies by micro-batch: how fast each square is, and where memory ran out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb

from reporting.analysis.findings import LARGEST, CellSummary
from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import View, best_key, groups_of, known, left_out, richest, strategies_of
from reporting.charts.marks import beside, draw_rectangle, write_above
from reporting.charts.sheet import Drawing, PanelGrid, panels, width_for
from reporting.charts.svg import INK, SURFACE

_MOST_MICRO_BATCHES = 8
# From low to high. These colours are the same in every theme, because numbers are written on them.
_RAMP = ("#dce9f5", "#08508c")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The table is what the map shows. ``span`` goes from the slowest to the fastest rate of all groups, so
    that their shades compare.
    """

    cells: Sequence[CellSummary]
    groups: Sequence[str]
    strategies: Sequence[str]
    batches: Sequence[int]
    span: tuple[float, float]


def heat_map(view: View) -> list[Drawing]:
    """Draws the model, sequence length and size with the most points, or nothing if the micro-batch never
    changes.
    """
    table = _table(view.cells)
    if table is None:
        return []
    left = 0.3 + 0.07 * max(len(wording.name_of(name, 12)) for name in table.strategies)
    height, columns = 0.34 * len(table.strategies), (1.0,) * len(table.groups)
    width = width_for(len(columns))
    grid = PanelGrid(widths=columns, width=width, left=left, gap=0.25, row_height=height, right=0.2)
    figure, (row,) = panels(grid)
    for axes, group in zip(row, table.groups, strict=True):
        _draw_group(axes, table, group)
        axes.tick_params(labelleft=axes is row[0])
        axes.set_title(view.titles[group])
    write_above(row[0], f"tokens/s per device; {_place_in_words(table.cells[0])}")
    num_out = sum(cell.status == "oom" for cell in table.cells)
    return [
        Drawing(
            name="heatmap_strategy_micro_batch",
            title="Throughput by strategy and micro-batch",
            caption="Tokens/s per device; darker is more. Crossed squares ran out of memory, dotted ones "
            "failed otherwise, empty ones were not tried."
            + left_out(len(table.cells), len(view.cells), "where most micro-batches were tried"),
            alt=f"Tokens per second and device for {wording.listed(table.strategies, 6)} at micro-batches "
            f"{wording.listed(map(_size_text, table.batches), 8)}; {num_out:,} of "
            f"{counted(len(table.cells), 'cell')} ran out of memory.",
            figure=figure,
        )
    ]


def _table(cells: Sequence[CellSummary]) -> _Table | None:
    largest_first = sorted(cells, key=lambda cell: -cell.subject.world_size)
    place = best_key(largest_first, _place, kind=_square)
    chosen = [cell for cell in largest_first if _place(cell) == place]
    batches = sorted(
        richest((cell.subject.micro_batch for cell in chosen), _MOST_MICRO_BATCHES),
        key=lambda batch: (batch == LARGEST, batch),
    )
    rates = [found.median for cell in chosen if (found := known(cell.tokens_per_sec_per_device))]
    if len(batches) < 2 or not rates:
        return None
    return _Table(
        cells=chosen,
        groups=groups_of(chosen),
        strategies=strategies_of(chosen),
        batches=batches,
        span=(min(rates), max(rates)),
    )


def _square(cell: CellSummary) -> tuple[str, str, int]:
    return cell.group, cell.subject.strategy, cell.subject.micro_batch


def _draw_group(axes: Axes, table: _Table, group: str) -> None:
    squares = _squares([cell for cell in table.cells if cell.group == group])
    for (strategy, batch), cell in squares.items():
        if strategy in table.strategies and batch in table.batches:
            column, row = table.batches.index(batch), table.strategies.index(strategy)
            _draw_square(axes, column, row, cell, table.span)
    _frame(axes, table.batches, table.strategies)


def _size_text(batch: int) -> str:
    return "max" if batch == LARGEST else str(batch)


def _place_in_words(cell: CellSummary) -> str:
    subject, devices = cell.subject, counted(cell.subject.world_size, "device")
    where = f"{wording.model_of(subject.model)}, {subject.seq_len:,} tokens, {devices}"
    return f"{where}, {wording.name_of(subject.precision, 8)}{subject.settings and f', {subject.settings}'}"


def _place(cell: CellSummary) -> tuple[str, int, int, str, str]:
    subject = cell.subject
    return subject.model, subject.seq_len, subject.world_size, subject.precision, subject.settings


def _squares(cells: Sequence[CellSummary]) -> dict[tuple[str, int], CellSummary]:
    """Returns one cell per square. If several cells share a square, the fastest is drawn."""

    def rate(cell: CellSummary) -> float:
        found = known(cell.tokens_per_sec_per_device)
        return found.median if found else 0.0

    return {(cell.subject.strategy, cell.subject.micro_batch): cell for cell in sorted(cells, key=rate)}


def _draw_square(axes: Axes, column: int, row: int, cell: CellSummary, span: tuple[float, float]) -> None:
    rate = known(cell.tokens_per_sec_per_device)
    box = (column - 0.48, row - 0.46, 0.96, 0.92)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
    if rate:
        share = (rate.median - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 1.0
        draw_rectangle(axes, box, _mixed(share))
        beside(
            axes,
            column,
            row,
            wording.short(rate.median),
            (0, 0),
            color="white" if share > 0.5 else "#111111",
            **middle,
        )
        return
    draw_rectangle(axes, box, INK, "xxxx" if cell.status == "oom" else "....")
    plate = {"boxstyle": "square,pad=0.2", "facecolor": SURFACE, "edgecolor": "none"}
    beside(axes, column, row, wording.name_of(cell.status, 12), (0, 0), color=INK, bbox=plate, **middle)


def _mixed(share: float) -> str:
    low, high = to_rgb(_RAMP[0]), to_rgb(_RAMP[1])
    red, green, blue = (a + (b - a) * share for a, b in zip(low, high, strict=True))
    return to_hex((red, green, blue))


def _frame(axes: Axes, batches: Sequence[int], strategies: Sequence[str]) -> None:
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.set_ylim(len(strategies) - 0.5, -0.5)
    axes.set_xticks(range(len(batches)), [_size_text(batch) for batch in batches])
    axes.set_xlabel("micro-batch (sequences per device)")
    axes.set_yticks(range(len(strategies)), [wording.name_of(name, 12) for name in strategies])
