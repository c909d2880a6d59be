"""This chart shows the loss over steps: training as a line, validation as circles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from reporting.analysis.formatting import counted
from reporting.charts import wording
from reporting.charts.choice import View
from reporting.charts.marks import Label, label_ends, line_style, scale_values
from reporting.charts.sheet import Drawing, PanelGrid, panels
from reporting.charts.svg import SURFACE
from reporting.charts.trainings.traces import MOST_POINTS, Trace, downsampled, runs_left_out, xy
from reporting.long_runs.summary import LongRun

_MOST_RUNS = 6
_MOST_VALIDATIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    run: LongRun
    training: Trace
    validation: Trace

    @property
    def end(self) -> tuple[float, float]:
        return (self.training or self.validation)[-1]

    @property
    def name(self) -> str:
        return wording.name_of(self.run.name)


def losses(view: View, runs: Sequence[LongRun]) -> list[Drawing]:
    curves = [curve for curve in map(_curve, runs) if len(curve.training) > 1 or curve.validation]
    shown = curves[:_MOST_RUNS]
    if not shown:
        return []
    room = 0.35 + 0.068 * max(len(curve.name) for curve in shown)
    figure, ((axes,),) = panels(PanelGrid(row_height=2.8, right=room, header=0.15))
    _scale(axes, [point for curve in shown for point in (*curve.training, *curve.validation)])
    for curve in shown:
        _draw(view, axes, curve)
    label_ends(axes, [_label(view, curve) for curve in shown])
    return [
        Drawing(
            name="loss_curves",
            title="Loss",
            caption="The line is the training loss, circles are validation."
            + _replayed(shown)
            + runs_left_out(len(shown), len(curves)),
            alt="Loss over steps. "
            + " ".join(f"{curve.name} ends at {wording.short(curve.end[1])}." for curve in shown),
            figure=figure,
        )
    ]


def _curve(run: LongRun) -> _Curve:
    training = (
        (float(step), loss) for step, loss in zip(run.steps, run.losses, strict=False) if loss is not None
    )
    validation = zip(map(float, run.val_steps), run.val_losses, strict=False)
    return _Curve(
        run=run,
        training=downsampled(training, MOST_POINTS),
        validation=downsampled(validation, _MOST_VALIDATIONS),
    )


def _draw(view: View, axes: Axes, curve: _Curve) -> None:
    look = view.looks[curve.run.group]
    colour, line = look.colour, line_style(look)
    axes.plot(*xy(curve.training), color=colour, linewidth=1.1, alpha=0.85, linestyle=line)
    circles: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": SURFACE}
    axes.plot(*xy(curve.validation), color=colour, clip_on=False, zorder=4, **circles)


def _scale(axes: Axes, points: Trace) -> None:
    """Scales the axes to all points, except single spikes far above the rest."""
    values = sorted(value for _, value in points)
    low, high, usual = values[0], values[-1], values[int(0.98 * (len(values) - 1))]
    top = usual if high > usual + 2 * (usual - low) > low else high
    room = 0.06 * (top - low) or 0.1 * abs(top) or 1.0
    scale_values(axes, low - room, top + room)
    axes.set_xlim(0, max(1.0, *(step for step, _ in points)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.tick(value)))
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("loss (nats per token)")


def _label(view: View, curve: _Curve) -> Label:
    x, y = curve.end
    return Label(x=x, y=y, text=curve.name, colour=view.looks[curve.run.group].colour)


def _replayed(shown: Sequence[_Curve]) -> str:
    number = sum(curve.run.num_superseded for curve in shown)
    return f" {counted(number, 'step')} taken again after restarts counted once." if number else ""
