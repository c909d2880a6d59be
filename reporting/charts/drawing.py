"""Which charts there are of findings: those with something to show, in the order in which a page has them."""

from reporting.charts.choice import view_of
from reporting.charts.curves import curves
from reporting.charts.sheet import own_style, render
from reporting.findings import Chart, Findings


def draw(findings: Findings) -> tuple[Chart, ...]:
    """The same findings give the same bytes. Nothing to show gives no charts."""
    view = view_of(findings)
    with own_style():
        return tuple(render(drawing) for drawing in curves(view))
