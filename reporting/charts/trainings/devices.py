"""This chart shows power and clocks of a run's devices over time, and so whether anything held them back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from reporting.charts import wording
from reporting.charts.choice import View
from reporting.charts.marks import Label, label_ends, leave_empty, scale_values, write_above
from reporting.charts.sheet import Drawing, PanelGrid, panels
from reporting.charts.trainings.traces import MOST_POINTS, Trace, downsampled, runs_left_out, xy
from reporting.long_runs.summary import LongRun

_MOST_RUNS = 3
_MOST_DEVICES = 8


def power_and_clocks(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    known = [run for run in runs if _has_trace(run.power_watts) or _has_trace(run.clock_mhz)]
    shown = known[:_MOST_RUNS]
    if not shown:
        return []
    figure, rows = panels(
        PanelGrid(rows=len(shown), widths=(1, 1), row_height=2.0, gap=1.0, row_gap=1.0, right=0.9)
    )
    for run, (left, right) in zip(shown, rows, strict=True):
        colour = view.looks[run.group].colour
        _draw_devices(left, run.power_watts, "Power (W per device)", colour)
        _draw_devices(right, _in_ghz(run.clock_mhz), "Clock (GHz)", colour)
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
            caption=f"A line for each device; the lowest and the highest are named where they differ.{more}"
            + runs_left_out(len(shown), len(known)),
            alt="Power and clock of each device over time for "
            + wording.listed(run.name for run in shown)
            + ".",
            figure=figure,
        )
    ]


def _has_trace(traces_by_device: Mapping[str, Trace]) -> bool:
    return any(len(downsampled(trace, 2)) > 1 for trace in traces_by_device.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    name: str
    trace: list[tuple[float, float]]
    median: float


def _draw_devices(axes: Axes, by_device: Mapping[str, Trace], title: str, colour: str) -> None:
    devices = _devices(by_device)
    axes.set_title(title)
    if not devices:
        leave_empty(axes, "not sampled")
        return
    longest = max(x for device in devices for x, _ in device.trace)
    unit = wording.elapsed_unit(longest)
    for device in devices:
        x, y = xy(device.trace)
        axes.plot([second / unit.size for second in x], y, color=colour, linewidth=0.9, alpha=0.55)
    values = [value for device in devices for _, value in device.trace]
    scale_values(axes, *_range(values))
    axes.set_xlim(0, max(longest / unit.size, 1e-9))
    axes.set_xlabel(f"time since the first start ({unit.name})")
    is_spread = devices[-1].median > 1.01 * devices[0].median
    ends = [devices[0], devices[-1]] if is_spread else []
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


def _in_ghz(by_device: Mapping[str, Trace]) -> dict[str, Trace]:
    return {name: [(second, mhz / 1e3) for second, mhz in trace] for name, trace in by_device.items()}


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Returns a range from zero, or a closer one if all values are far above zero."""
    low, high = min(values), max(values)
    room = 0.5 * (high - low) or 0.1 * abs(high) or 1.0
    return (0.0 if low < 0.5 * high else low - room), high + 0.2 * room


def _devices(by_device: Mapping[str, Trace]) -> list[_Device]:
    """Returns the devices ordered by median. If there are too many, only those at both ends are kept."""
    found = []
    for name, trace in by_device.items():
        points = downsampled(trace, MOST_POINTS)
        if len(points) > 1:
            values = sorted(value for _, value in points)
            found.append(_Device(name=name, trace=points, median=values[len(values) // 2]))
    found.sort(key=lambda device: (device.median, device.name))
    half = _MOST_DEVICES // 2
    return found if len(found) <= _MOST_DEVICES else found[:half] + found[-half:]
