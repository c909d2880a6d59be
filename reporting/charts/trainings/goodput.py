"""This chart shows goodput and incidents over time, and where the unproductive time went."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import View
from reporting.charts.marks import beside, draw_rectangle, leave_empty, scale_values, write_above
from reporting.charts.sheet import FAINT, Drawing, PanelGrid, panels
from reporting.charts.svg import INK, SURFACE
from reporting.charts.trainings.traces import MOST_POINTS, downsampled, runs_left_out, xy
from reporting.long_runs.summary import LongRun

_MOST_RUNS = 3
_MOST_OF_A_KIND = 60
_MOST_LANES = 6
_MOST_PHASES = 8
_LANE_HEIGHT = 0.13
# Ordered by importance: if there are too many kinds, the last ones are left out.
_MARKERS = {
    "failure": "X",
    "give up": "P",
    "interruption": "D",
    "alarm": "*",
    "restore": "^",
    "failed save": "x",
    "start": ">",
    "save": "|",
    "stop": "s",
    "end": "s",
}
_MARK: dict[str, Any] = {"color": INK, "linestyle": "", "clip_on": False, "zorder": 4}
_CUTS = ("failure", "give up", "interruption")

_Incident = tuple[float, str]


def goodput(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    known = [run for run in runs if downsampled(run.goodput_trace, MOST_POINTS) or _lost(run)]
    shown = known[:_MOST_RUNS]
    if not shown:
        return []
    below = 0.6 + 0.24 * max(len(_lanes(run)) for run in shown)
    rows_and_gaps = {"row_height": 1.8, "row_gap": 0.7 + below, "gap": 1.05}
    grid = PanelGrid(rows=len(shown), widths=(1.6, 1.0), right=1.15, bottom=0.1 + below, **rows_and_gaps)
    figure, rows = panels(grid)
    for run, (left, right) in zip(shown, rows, strict=True):
        _draw_trace(left, run, view.looks[run.group].colour)
        _draw_lost(right, run)
        devices = counted(run.world_size, "device")
        write_above(left, f"{wording.name_of(run.name)}, {view.titles[run.group]}, {devices}")
    return [
        Drawing(
            name="goodput",
            title="Goodput",
            caption="The share of the time that made progress which lasts, since the first start, with what "
            "happened on the way; beside it where the other time went."
            + runs_left_out(len(shown), len(known)),
            alt=" ".join(_in_words(run) for run in shown),
            figure=figure,
        )
    ]


def _draw_trace(axes: Axes, run: LongRun, colour: str) -> None:
    trace = downsampled(run.goodput_trace, MOST_POINTS)
    lanes = _lanes(run)
    longest = max([1.0, *(x for x, _ in trace), *(x for lane in lanes.values() for x, _ in lane)])
    unit = wording.elapsed_unit(longest)
    seconds, shares = xy(trace)
    axes.plot([x / unit.size for x in seconds], [100 * y for y in shares], color=colour)
    # Goodput starts at zero. The first points are ignored, because they would flatten the rest of the curve.
    lowest = min((100 * y for y in shares[len(shares) // 20 :]), default=0.0)
    scale_values(axes, max(0.0, 10 * (min(lowest, 99.0) // 10) - 5), 102.0)
    axes.set_xlim(0, 1.02 * longest / unit.size)
    axes.set_title("Goodput (%)")
    _draw_incidents(axes, lanes, unit)


def _lanes(run: LongRun) -> dict[str, list[_Incident]]:
    """Returns incidents by kind, the most important kind first. Of very frequent kinds only some are kept."""
    kinds = sorted({kind for _, kind, _ in run.incidents}, key=_importance)[:_MOST_LANES]
    lanes = {}
    for kind in kinds:
        own = [
            (x, text) for x, other, text in run.incidents if other == kind and wording.is_number(x) and x >= 0
        ]
        lanes[kind] = own[:: 1 + len(own) // _MOST_OF_A_KIND]
    return {kind: lane for kind, lane in lanes.items() if lane}


def _importance(kind: str) -> tuple[int, str]:
    names = list(_MARKERS)
    return (names.index(kind) if kind in _MARKERS else len(names), kind)


def _draw_incidents(axes: Axes, found: Mapping[str, Sequence[_Incident]], unit: wording.Unit) -> None:
    """Draws a lane for each kind below the panel. Incidents that interrupted the run are also marked in the
    panel.
    """
    height = _LANE_HEIGHT * max(len(found), 1)
    lanes = axes.inset_axes((0, -0.12 - height, 1, height))
    _frame_lanes(axes, lanes, list(found), unit)
    for row, (kind, incidents) in enumerate(found.items()):
        places = [(second / unit.size, text) for second, text in incidents]
        xs = [x for x, _ in places]
        lanes.plot(xs, [row] * len(xs), marker=_MARKERS.get(kind, "o"), **_MARK)
        _name_incidents(lanes, row, places)
        for x in xs if kind in _CUTS else []:
            axes.axvline(x, color=(INK, 0.35), linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)


def _frame_lanes(axes: Axes, lanes: Axes, kinds: Sequence[str], unit: wording.Unit) -> None:
    axes.tick_params(labelbottom=False)
    lanes.patch.set_visible(False)
    lanes.spines[:].set_visible(False)
    lanes.set_xlim(axes.get_xlim())
    lanes.set_ylim(max(len(kinds), 1) - 0.5, -0.5)
    lanes.set_yticks(range(len(kinds)), [wording.name_of(kind, 12) for kind in kinds])
    lanes.tick_params(length=0, labelsize=8, labelcolor=(INK, 0.62))
    lanes.grid(axis="y", color=FAINT, linewidth=0.7)
    lanes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))
    lanes.set_xlabel(f"time since the first start ({unit.name})")


def _name_incidents(lanes: Axes, row: int, incidents: Sequence[_Incident]) -> None:
    """Writes an incident's text beside its mark if it fits before the next mark."""
    end = lanes.get_xlim()[1]
    starts = [x for x, _ in incidents] + [end]
    for index, (x, text) in enumerate(incidents):
        num_fitting = int((starts[index + 1] - x) / end * 58) - 3
        if text and num_fitting >= 8:
            plate = {"boxstyle": "square,pad=0.1", "facecolor": SURFACE, "edgecolor": "none"}
            beside(
                lanes, x, row, wording.name_of(text, num_fitting), (6, 0), va="center", zorder=2, bbox=plate
            )


def _lost(run: LongRun) -> list[tuple[str, float]]:
    """Returns the unproductive phases, the longest first."""
    spent = {name: spent for name, spent in run.phases.items() if wording.is_number(spent) and spent > 0}
    lost = [(name, spent) for name, spent in spent.items() if name != "productive"]
    return sorted(lost, key=lambda pair: (-pair[1], pair[0]))


def _draw_lost(axes: Axes, run: LongRun) -> None:
    lost = _lost(run)[:_MOST_PHASES]
    axes.set_title("Time not productive")
    if not lost:
        leave_empty(axes, "not recorded")
        return
    whole = sum(spent for spent in run.phases.values() if wording.is_number(spent) and spent > 0)
    for row, (_, spent) in enumerate(lost):
        draw_rectangle(axes, (0.0, row - 0.33, spent, 0.66), "#7f8891")
        beside(
            axes,
            spent,
            row,
            f"{wording.duration(spent)}, {wording.short(100 * spent / whole)} %",
            (4, 0),
            va="center",
        )
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_xlim(0, lost[0][1])
    axes.set_ylim(max(len(lost), 5) - 0.4, -0.6)
    axes.set_yticks(range(len(lost)), [wording.name_of(name, 12) for name, _ in lost])


def _in_words(run: LongRun) -> str:
    is_known = run.goodput is not None and wording.is_number(run.goodput)
    share = f"{100 * (run.goodput or 0.0):.1f} %" if is_known else "unknown"
    lost = _lost(run)
    most = (
        f", most was lost to {wording.name_of(lost[0][0], 12)} ({wording.duration(lost[0][1])})"
        if lost
        else ""
    )
    incidents = counted(len(run.incidents), "incident")
    return f"{wording.name_of(run.name)}: goodput {share}{most}, {incidents}."
