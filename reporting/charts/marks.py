"""Marks are what is drawn in a panel: lines with intervals, labels that don't touch, failures, scales."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from reporting.analysis.findings import Estimate
from reporting.charts import wording
from reporting.charts.looks import GroupLook, StrategyLook, strategy_look
from reporting.charts.sheet import MUTED, SMALL
from reporting.charts.svg import INK, SURFACE

_LINEAR_UP_TO = 16
_MOST_FAILURES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A number with its interval. Without an interval, ``low`` and ``high`` equal ``middle``."""

    x: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    x: float
    y: float
    text: str
    colour: str


def point_of(x: float, found: Estimate, unit: float) -> ChartPoint:
    """Makes a point in units of ``unit``. The median replaces a bound that is not known."""
    low = found.low if found.low is not None and wording.is_number(found.low) else found.median
    high = found.high if found.high is not None and wording.is_number(found.high) else found.median
    middle = found.median / unit
    return ChartPoint(x=x, middle=middle, low=min(low / unit, middle), high=max(high / unit, middle))


def draw_line(axes: Axes, points: Sequence[ChartPoint], strategy: str, group: GroupLook) -> None:
    """Draws a strategy's line for a group. A single point has only its marker."""
    look = strategy_look(strategy)
    axes.plot(
        [point.x for point in points],
        [point.middle for point in points],
        color=group.colour,
        marker=look.marker,
        linestyle=line_style(group),
        markerfacecolor=group.colour if group.is_filled else SURFACE,
        markeredgewidth=1.2,
        clip_on=False,
        zorder=3,
    )
    draw_intervals(axes, points, group.colour)


def draw_intervals(axes: Axes, points: Iterable[ChartPoint], colour: str) -> None:
    """Draws all intervals as one line with gaps. A line for each interval would take most of a
    chart's time.
    """
    found = [point for point in points if point.high > point.low]
    xs = [x for point in found for x in (point.x, point.x, nan)]
    ys = [y for point in found for y in (point.low, point.high, nan)]
    axes.plot(
        xs, ys, color=colour, linewidth=1.1, marker="_", markersize=6, markerfacecolor=colour, zorder=2.5
    )


def label_ends(axes: Axes, labels: Iterable[Label]) -> None:
    """Writes labels right of the panel, in the order of the lines' ends, at least a line of text apart."""
    ordered = sorted(labels, key=lambda label: (label.y, label.text))
    ends = [_fraction(axes, label.x, label.y) for label in ordered]
    heights = apart([y for _, y in ends], _text_height(axes))
    for label, (x, y), height in zip(ordered, ends, heights, strict=True):
        leader = ([min(x + 0.02, 1.0), 1.03], [y, height])
        axes.plot(
            *leader, color=label.colour, linewidth=0.6, alpha=0.45, transform=axes.transAxes, clip_on=False
        )
        place: dict[str, Any] = {"xycoords": "axes fraction", "va": "center", "fontsize": 8}
        beside(axes, 1.035, height, label.text, (1, 0), color=label.colour, **place)


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Moves rising numbers as far as needed to be ``gap`` apart, within 0 and 1 if they fit."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + gap) if found else max(height, 0.0))
    ceiling = 1.0
    for index in reversed(range(len(found))):
        found[index] = min(found[index], ceiling)
        ceiling = found[index] - gap
    return found


def draw_failures(axes: Axes, failed: Iterable[tuple[float, str, str]], colour: str) -> None:
    """Draws an x at the bottom for each (x, strategy, status), one above another if they share a place."""
    height_of: dict[float, int] = {}
    for x, strategy, status in list(failed)[:_MOST_FAILURES]:
        level = height_of.get(x, 0)
        height_of[x] = level + 1
        y = 0.04 + level * _text_height(axes)
        place = axes.get_xaxis_transform()
        axes.plot([x], [y], marker="x", color=colour, markersize=6, markeredgewidth=1.8, transform=place)
        text = f"{wording.name_of(strategy, 12)}: {wording.name_of(status, 14)}"
        is_left = _is_left(axes, x)
        place_text = {"va": "center", "ha": "left" if is_left else "right", "color": colour}
        beside(axes, x, y, text, (6 if is_left else -6, 0), xycoords=place, **place_text)


def label_points(axes: Axes, labels: Iterable[Label], obstacles: Iterable[tuple[float, float]]) -> None:
    """Writes each label beside its point, where it touches no label and no obstacle. A label without such a
    place is left out.
    """
    taken = [_Box.around(*_points(axes, x, y)) for x, y in obstacles]
    (left, right_end), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    panel = _Box(*_points(axes, left, bottom), *_points(axes, right_end, top))
    for label in labels:
        x, y = _points(axes, label.x, label.y)
        for right, up in ((7, 7), (-7, 7), (7, -7), (-7, -7)):
            box = _Box.of_text(label.text, x + right, y + up, is_left=right < 0)
            if box.is_within(panel) and not any(box.touches(other) for other in taken):
                taken.append(box)
                place = {"ha": "right" if right < 0 else "left", "va": "center", "color": label.colour}
                beside(axes, label.x, label.y, label.text, (right, up), **place)
                break


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle in points of the figure."""

    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def around(cls, x: float, y: float) -> "_Box":
        return cls(x - 4, y - 4, x + 4, y + 4)

    @classmethod
    def of_text(cls, text: str, x: float, y: float, *, is_left: bool) -> "_Box":
        width = 0.62 * SMALL * len(text)
        return cls(x - width * is_left, y - 0.6 * SMALL, x + width * (not is_left), y + 0.6 * SMALL)

    def is_within(self, other: "_Box") -> bool:
        is_across = other.left <= self.left and self.right <= other.right
        return is_across and other.bottom <= self.bottom and self.top <= other.top

    def touches(self, other: "_Box") -> bool:
        is_beside = self.right < other.left or other.right < self.left
        return not (is_beside or self.top < other.bottom or other.top < self.bottom)


def draw_key(axes: Axes, strategies: Sequence[str], groups: Sequence[tuple[str, GroupLook]]) -> None:
    """Draws the key right of the panel: markers of strategies, colours, lines and fillings of groups."""
    handles = [_handle(strategy_look(name), None) for name in strategies]
    handles += [_handle(StrategyLook(marker="o"), look) for _, look in groups]
    names = [wording.name_of(name, 16) for name in strategies] + [title for title, _ in groups]
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.02, 1.03), fontsize=8, handlelength=3)


def _handle(look: StrategyLook, group: GroupLook | None) -> Line2D:
    line: Any = line_style(group) if group else ""
    colour: Any = group.colour if group else INK
    face = SURFACE if group and not group.is_filled else colour
    return Line2D([], [], color=colour, marker=look.marker, linestyle=line, markerfacecolor=face)


def range_far(sizes: Sequence[int]) -> bool:
    """Whether sizes range so far that the small ones would overlap on a linear scale."""
    return sizes[-1] > _LINEAR_UP_TO * sizes[0]


def scale_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """Scales x for numbers of devices, in doublings if they range far."""
    is_log = range_far(sizes)
    if is_log:
        axes.set_xscale("log", base=2)
        axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    else:
        room = 0.06 * max(sizes[-1] - sizes[0], 1)
        axes.set_xlim(sizes[0] - room, sizes[-1] + room)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in _readable(sizes, is_log)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))
    axes.set_xlabel("devices")


def scale_values(axes: Axes, low: float, high: float) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))


def line_style(group: GroupLook) -> Any:
    return (0, group.dashes) if group.dashes else "-"


def fitting(axes: Axes) -> int:
    """Returns how many letters of small text fit into a panel's width."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "a panel is in a figure"
    inches = axes.get_position().width * figure.get_size_inches()[0]
    return max(8, int(inches / 0.068))


def write_above(axes: Axes, text: str, up: float = 21) -> None:
    """Writes a muted line above the panel's title, about the whole panel."""
    beside(axes, 0, 1, text, (0, up), xycoords="axes fraction", fontsize=8)


def beside(axes: Axes, x: float, y: float, text: str, offset: tuple[float, float], **changes: Any) -> None:
    """Writes small muted text at ``offset`` points from a value."""
    plain: dict[str, Any] = {"fontsize": SMALL, "color": MUTED, "annotation_clip": False}
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", **{**plain, **changes})


def write(axes: Axes, text: str) -> None:
    """Writes text in the middle of an otherwise empty panel."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=MUTED, fontsize=8)


def leave_empty(axes: Axes, why: str) -> None:
    """Writes ``why`` into a panel without data, and removes its scales."""
    write(axes, why)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_rectangle(axes: Axes, box: tuple[float, float, float, float], colour: str, hatch: str = "") -> None:
    """Draws a rectangle of left, bottom, width and height: solid, or pale under a hatch.

    The hatch is on a rectangle of its own, because in an SVG it would be as pale as the colour below it.
    """
    left, bottom, width, height = box
    place = ((left, bottom), width, height)
    if not hatch:
        axes.add_patch(Rectangle(*place, facecolor=colour, edgecolor="none"))
        return
    axes.add_patch(Rectangle(*place, facecolor=(colour, 0.22), edgecolor="none"))
    axes.add_patch(Rectangle(*place, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8))


def rule(axes: Axes, y: float) -> None:
    """Draws a level to compare with."""
    axes.axhline(y, color=(INK, 0.45), linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)


def _readable(sizes: Sequence[int], is_log: bool) -> list[int]:
    """Returns all sizes. If their labels would touch, it returns those far enough apart, starting at the
    largest.
    """
    chosen: list[int] = []
    for size in reversed(sizes):
        if not chosen or _are_apart(size, chosen[-1], sizes[-1], is_log):
            chosen.append(size)
    return chosen


def _are_apart(size: int, larger: int, largest: int, is_log: bool) -> bool:
    return larger >= 1.5 * size if is_log else larger - size >= 0.06 * largest


def _fraction(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Returns the place of a value in fractions of the panel."""
    found = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(found[0]), float(found[1])


def _points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Returns the place of a value in points of the figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "a panel is in a figure"
    found = axes.transData.transform((x, y)) * 72 / figure.dpi
    return float(found[0]), float(found[1])


def _text_height(axes: Axes) -> float:
    """Returns the height of a small line of text, as a fraction of the panel's height."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "a panel is in a figure"
    inches = axes.get_position().height * figure.get_size_inches()[1]
    return float(1.45 * SMALL / 72 / inches)


def _is_left(axes: Axes, x: float) -> bool:
    return _fraction(axes, x, axes.get_ylim()[1])[0] < 0.6
