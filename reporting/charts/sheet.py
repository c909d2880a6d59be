"""A sheet is an empty figure whose panels all look alike; a finished one is rendered to bytes.

No global setting has any effect: no matplotlibrc, backend, locale or clock. Text is never read as
mathematics. Parts drawn in ``INK`` take the page's text colour.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reporting.analysis.findings import Chart
from reporting.charts.svg import INK, fit_for_page
from reporting.charts.wording import name_of

MUTED = (INK, 0.62)
FAINT = (INK, 0.14)
SMALL = 7.5

_TITLE_IN = 0.36
_DPI = 144
_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "longhaul",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelGrid:
    """The places of panels, in inches. ``widths`` are the columns' shares of the width between the
    margins.
    """

    rows: int = 1
    widths: tuple[float, ...] = (1.0,)
    row_height: float = 2.5
    width: float = 8.4
    left: float = 0.72
    right: float = 0.25
    gap: float = 0.4
    row_gap: float = 0.75
    header: float = 0.5
    bottom: float = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A finished figure, and the words around it."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure


@contextmanager
def own_style() -> Iterator[None]:
    """Sets our style. Drawing and rendering must both happen in it, because matplotlib reads some settings
    only when rendering.
    """
    defaults = matplotlib.rcParamsDefault.items()
    settings: Any = {key: value for key, value in defaults if not key.startswith("backend")}
    with warnings.catch_warnings(), matplotlib.rc_context(settings | _STYLE):
        # A name may hold characters that our fonts lack; a box is shown for them, which needs no warning.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def width_for(num_columns: int) -> float:
    """Returns a width in inches. Three panels need more than two for their text to stay readable."""
    return 8.4 if num_columns < 3 else 10.6


def panels(grid: PanelGrid) -> tuple[Figure, list[list[Axes]]]:
    """Returns the figure, and its axes by row and column."""
    height = (
        _TITLE_IN + grid.header + grid.rows * grid.row_height + (grid.rows - 1) * grid.row_gap + grid.bottom
    )
    figure = Figure(figsize=(grid.width, height))
    rows = [_row(figure, grid, index, height) for index in range(grid.rows)]
    return figure, rows


def render(drawing: Drawing) -> Chart:
    figure = drawing.figure
    title = figure.text(
        0.012, 1 - 0.1 / _height(figure), name_of(drawing.title, 90), va="top", size=11, weight="bold"
    )
    png = BytesIO()
    figure.set_facecolor("white")
    FigureCanvasAgg(figure).print_figure(png, format="png", dpi=_DPI, metadata={"Software": None})
    title.set_visible(False)
    return Chart(
        name=drawing.name,
        title=drawing.title,
        caption=drawing.caption,
        alt=drawing.alt,
        png=png.getvalue(),
        svg=fit_for_page(_svg(figure), name=drawing.name, label=drawing.alt, cut_top=72 * _TITLE_IN),
    )


def _svg(figure: Figure) -> str:
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.patch.set_visible(False)
    FigureCanvasSVG(figure).print_figure(text, format="svg", metadata=nothing)
    return text.getvalue()


def _row(figure: Figure, grid: PanelGrid, index: int, height: float) -> list[Axes]:
    room = grid.width - grid.left - grid.right - grid.gap * (len(grid.widths) - 1)
    bottom = grid.bottom + (grid.rows - 1 - index) * (grid.row_height + grid.row_gap)
    left, found = grid.left, []
    for share in grid.widths:
        width = room * share / sum(grid.widths)
        box = (left / grid.width, bottom / height, width / grid.width, grid.row_height / height)
        found.append(_plain(figure.add_axes(box)))
        left += width + grid.gap
    return found


def _plain(axes: Axes) -> Axes:
    """Draws light horizontal lines, and no box, tick marks or background."""
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    return axes


def _height(figure: Figure) -> float:
    return float(figure.get_size_inches()[1])
