"""What changes while a long run runs: its loss, the time that it loses, its devices' power and clocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from reporting.charts import wording
from reporting.charts.choice import View
from reporting.charts.looks import strategy_look
from reporting.charts.marks import Label, label_ends, line_style, scale_values, write_above
from reporting.charts.sheet import MUTED, SMALL, Drawing, Grid, panels
from reporting.charts.svg import INK, SURFACE
from reporting.findings import LongRun

_MOST_RUNS = 6
_MOST_ROWS = 3
_MOST_DEVICES = 8
_MOST_POINTS = 500
_MOST_INCIDENTS = 60
_MOST_PHASES = 8

_Trace = Sequence[tuple[float, float]]
# Failures first: where there is no room for all names, theirs are written.
_KINDS = {"failure": "X", "restart": "^", "restore": "^", "save": "|"}


def traces(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    return [*_losses(view, runs), *_goodput(view, runs), *_power(view, runs)]


def thinned(points: Iterable[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Of each stretch the lowest and the highest, so that no spike is lost; only what is finite."""
    found = [point for point in points if wording.is_number(point[0]) and wording.is_number(point[1])]
    if len(found) <= most:
        return found
    size = -(-2 * len(found) // most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(found), size):
        stretch = found[start : start + size]
        ends = {stretch.index(pick(stretch, key=lambda point: point[1])) for pick in (min, max)}
        kept += [stretch[index] for index in sorted(ends)]
    return kept


def _losses(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    curves = [(run, _loss(run), _validation(run)) for run in runs]
    curves = [curve for curve in curves if len(curve[1]) > 1 or curve[2]]
    shown = curves[:_MOST_RUNS]
    if not shown:
        return []
    longest = max(len(wording.name_of(run.name)) for run, _, _ in shown)
    figure, ((axes,),) = panels(Grid(row_height=2.8, right=0.35 + 0.068 * longest, header=0.15))
    ends = []
    for run, losses, validation in shown:
        colour = strategy_look(run.strategy).colour
        axes.plot(
            *_xy(losses), color=colour, linewidth=1.1, alpha=0.85, linestyle=line_style(view.looks[run.group])
        )
        axes.plot(
            *_xy(validation),
            color=colour,
            marker="o",
            linestyle="",
            markersize=5,
            markerfacecolor=SURFACE,
            zorder=4,
        )
        end = (losses or validation)[-1]
        ends.append(Label(x=end[0], y=end[1], text=wording.name_of(run.name), colour=colour))
    values = sorted(value for _, losses, validation in shown for _, value in (*losses, *validation))
    scale_values(axes, *_loss_range(values))
    axes.set_xlim(0, max(1.0, *(x for _, losses, validation in shown for x, _ in (*losses, *validation))))
    axes.set_xlabel("optimizer steps")
    axes.xaxis.set_major_formatter(lambda value, _: wording.tick(value))
    axes.set_ylabel("loss (nats per token)")
    label_ends(axes, ends)
    superseded = sum(run.num_superseded for run, _, _ in shown)
    return [
        Drawing(
            name="loss_curves",
            title="Loss",
            caption="The line is the training loss, circles are validation. "
            f"{wording.counted(superseded, 'step')} done again after a restart counted once."
            + _runs_left_out(len(shown), len(curves)),
            alt="Loss over steps. "
            + " ".join(
                f"{wording.name_of(run.name)} ends at {wording.short((losses or validation)[-1][1])}."
                for run, losses, validation in shown
            ),
            figure=figure,
        )
    ]


def _loss(run: LongRun) -> list[tuple[float, float]]:
    pairs = zip(run.steps, run.losses, strict=False)
    return thinned(((float(step), loss) for step, loss in pairs if loss is not None), _MOST_POINTS)


def _validation(run: LongRun) -> list[tuple[float, float]]:
    return thinned(zip(map(float, run.val_steps), run.val_losses, strict=False), 60)


def _loss_range(values: Sequence[float]) -> tuple[float, float]:
    """All of it, but for a first steep fall and single spikes above it."""
    low, high = values[0], values[-1]
    usual = values[int(0.98 * (len(values) - 1))]
    top = usual if high > usual + 2 * (usual - low) else high
    room = 0.06 * (top - low) or 0.1 * abs(top) or 1.0
    return low - room, top + room


def _goodput(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    known = [run for run in runs if thinned(run.goodput_trace, _MOST_POINTS) or _lost(run)]
    shown = known[:_MOST_ROWS]
    if not shown:
        return []
    figure, rows = panels(
        Grid(rows=len(shown), widths=(1.6, 1.0), row_height=2.0, gap=1.15, row_gap=1.0, right=0.75)
    )
    for run, (left, right) in zip(shown, rows, strict=True):
        _draw_goodput(left, run)
        _draw_lost(right, run)
        write_above(
            left,
            f"{wording.name_of(run.name)}, {view.titles[run.group]}, {wording.counted(run.world_size, 'device')}",
        )
    return [
        Drawing(
            name="goodput",
            title="Goodput: the share of the time that made progress which lasts",
            caption="Left, since the first start, with what happened on the way; right, where the other time went."
            + _runs_left_out(len(shown), len(known)),
            alt=" ".join(_goodput_in_words(run) for run in shown),
            figure=figure,
        )
    ]


def _draw_goodput(axes: Axes, run: LongRun) -> None:
    trace = thinned(run.goodput_trace, _MOST_POINTS)
    incidents = [found for found in run.incidents if wording.is_number(found[0]) and found[0] >= 0]
    longest = max([1.0, *(x for x, _ in trace), *(x for x, _, _ in incidents)])
    unit = wording.elapsed_unit(longest)
    colour = strategy_look(run.strategy).colour
    axes.plot([x / unit.size for x, _ in trace], [100 * y for _, y in trace], color=colour)
    lowest = min((100 * y for _, y in trace[len(trace) // 20 :]), default=0.0)
    low = max(0.0, 10 * (min(lowest, 99.0) // 10) - 5)
    scale_values(axes, low, 103.0)
    axes.set_xlim(0, 1.02 * longest / unit.size)
    axes.set_title("Goodput (%)")
    axes.set_xlabel(f"time since the first start ({unit.name})")
    _draw_incidents(axes, incidents, unit.size)


def _draw_incidents(axes: Axes, incidents: Sequence[tuple[float, str, str]], unit: float) -> None:
    """Each as a line with its kind's mark; its text where no other is near, failures first."""
    ordered = sorted(incidents, key=lambda found: (found[1] != "failure", found[0]))[:_MOST_INCIDENTS]
    across, width, taken = axes.get_xaxis_transform(), axes.get_xlim()[1], []
    for second, kind, text in ordered:
        x = second / unit
        axes.axvline(x, color=(INK, 0.3), linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        axes.plot(
            [x], [0.07], marker=_KINDS.get(kind, "o"), color=INK, markersize=5, transform=across, zorder=4
        )
        if all(abs(x - other) > 0.06 * width for other in taken):
            taken.append(x)
            words = wording.name_of(f"{kind}: {text}" if text else kind, 30)
            axes.text(
                x + 0.012 * width,
                0.14,
                words,
                rotation=90,
                transform=across,
                fontsize=SMALL,
                color=MUTED,
                va="bottom",
            )


def _lost(run: LongRun) -> list[tuple[str, float]]:
    """The longest first."""
    found = [
        (name, spent)
        for name, spent in run.phases.items()
        if name != "productive" and wording.is_number(spent) and spent > 0
    ]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _draw_lost(axes: Axes, run: LongRun) -> None:
    lost = _lost(run)[:_MOST_PHASES]
    whole = (
        run.wall_sec if run.wall_sec and wording.is_number(run.wall_sec) else sum(spent for _, spent in lost)
    )
    axes.set_title("Time not productive")
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks(range(len(lost)), [wording.name_of(name, 12) for name, _ in lost])
    for row, (_, spent) in enumerate(lost):
        axes.barh(row, spent, 0.66, color=(INK, 0.35))
        text = f"{wording.duration(spent)}, {100 * spent / whole:.2g} %"
        axes.annotate(
            text,
            (spent, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=MUTED,
            annotation_clip=False,
        )
    axes.set_ylim(max(len(lost), 5) - 0.4, -0.6)


def _goodput_in_words(run: LongRun) -> str:
    goodput = (
        f"{100 * run.goodput:.1f} %"
        if run.goodput is not None and wording.is_number(run.goodput)
        else "unknown"
    )
    lost = _lost(run)
    most = (
        f", most was lost to {wording.name_of(lost[0][0], 12)} ({wording.duration(lost[0][1])})"
        if lost
        else ""
    )
    return f"{wording.name_of(run.name)}: goodput {goodput}{most}, {wording.counted(len(run.incidents), 'incident')}."


def _power(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    known = [run for run in runs if _has_trace(run.power_watts) or _has_trace(run.clock_mhz)]
    shown = known[:_MOST_ROWS]
    if not shown:
        return []
    figure, rows = panels(
        Grid(rows=len(shown), widths=(1, 1), row_height=2.0, gap=1.0, row_gap=1.0, right=0.9)
    )
    for run, (left, right) in zip(shown, rows, strict=True):
        colour = strategy_look(run.strategy).colour
        _draw_devices(left, run.power_watts, "Power (W per device)", colour)
        _draw_devices(right, run.clock_mhz, "Clock (MHz)", colour)
        write_above(left, f"{wording.name_of(run.name)}, {view.titles[run.group]}")
    num_devices = max(max(len(run.power_watts), len(run.clock_mhz)) for run in shown)
    more = (
        f" Of {num_devices} devices the {_MOST_DEVICES} that differ most are drawn."
        if num_devices > _MOST_DEVICES
        else ""
    )
    return [
        Drawing(
            name="power_clock",
            title="Power and clocks",
            caption=f"A line for each device; the lowest and the highest are named.{more}"
            + _runs_left_out(len(shown), len(known)),
            alt="Power and clock of each device over time for "
            + wording.listed(run.name for run in shown)
            + ".",
            figure=figure,
        )
    ]


def _has_trace(traces_by_device: Mapping[str, _Trace]) -> bool:
    return any(len(thinned(trace, 2)) > 1 for trace in traces_by_device.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    name: str
    trace: list[tuple[float, float]]
    median: float


def _draw_devices(axes: Axes, by_device: Mapping[str, _Trace], title: str, colour: str) -> None:
    devices = _devices(by_device)
    axes.set_title(title)
    if not devices:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not sampled", transform=axes.transAxes, ha="center", color=MUTED)
        return
    longest = max(x for device in devices for x, _ in device.trace)
    unit = wording.elapsed_unit(longest)
    for device in devices:
        x, y = _xy(device.trace)
        axes.plot([second / unit.size for second in x], y, color=colour, linewidth=0.9, alpha=0.55)
    values = [value for device in devices for _, value in device.trace]
    scale_values(axes, 0.0, 1.08 * max(*values, 1e-9))
    axes.set_xlim(0, max(longest / unit.size, 1e-9))
    axes.set_xlabel(f"time since the first start ({unit.name})")
    ends = [devices[0], devices[-1]] if len(devices) > 1 else devices
    label_ends(
        axes,
        [
            Label(
                x=device.trace[-1][0] / unit.size,
                y=device.median,
                text=wording.name_of(device.name, 10),
                colour=colour,
            )
            for device in ends
        ],
    )


def _devices(by_device: Mapping[str, _Trace]) -> list[_Device]:
    """By their median; of many, those at both ends."""
    found = []
    for name, trace in by_device.items():
        points = thinned(trace, _MOST_POINTS)
        if len(points) > 1:
            values = sorted(value for _, value in points)
            found.append(_Device(name=name, trace=points, median=values[len(values) // 2]))
    found.sort(key=lambda device: (device.median, device.name))
    half = _MOST_DEVICES // 2
    return found if len(found) <= _MOST_DEVICES else found[:half] + found[-half:]


def _xy(points: _Trace) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _runs_left_out(shown: int, of: int) -> str:
    return f" {shown} of {of} runs are drawn." if shown < of else ""
