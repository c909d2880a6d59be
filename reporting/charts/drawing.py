"""This module draws all charts for which findings have data, in the order in which the page shows them."""

from reporting.analysis.findings import Chart, Findings
from reporting.charts.choice import view_of
from reporting.charts.costs import costs
from reporting.charts.curves import curves
from reporting.charts.front import front
from reporting.charts.heat_map import heat_map
from reporting.charts.limit import memory_limit
from reporting.charts.panels import comparison
from reporting.charts.sheet import Drawing, own_style, render
from reporting.charts.trainings.devices import power_and_clocks
from reporting.charts.trainings.goodput import goodput
from reporting.charts.trainings.losses import losses
from reporting.charts.verdicts import verdicts


def draw(findings: Findings) -> tuple[Chart, ...]:
    """Draws the charts; findings without data give none. The same findings give the same bytes."""
    with own_style():
        return tuple(map(render, drawings(findings)))


def drawings(findings: Findings) -> tuple[Drawing, ...]:
    """Returns the finished figures. Call it, and render them, in ``own_style``."""
    view, runs = view_of(findings), findings.runs
    return (
        *verdicts(view, findings),
        *comparison(view),
        *costs(view, findings.money),
        *curves(view),
        *memory_limit(view),
        *front(view),
        *heat_map(view),
        *losses(view, runs),
        *goodput(view, runs),
        *power_and_clocks(view, runs),
    )
