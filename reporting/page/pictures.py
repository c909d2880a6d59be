"""This section has the charts, as vector drawings while there is room for them. Pure."""

from base64 import b64encode
from collections.abc import Sequence

from reporting.analysis.findings import Chart
from reporting.page.markup import NOTHING, Markup, element, together, void
from reporting.page.pieces import section


def pictures(charts: Sequence[Chart], room: int) -> Markup:
    """Shows the charts in about ``room`` bytes at most. A chart that does not fit is named with its file."""
    if not charts:
        return NOTHING
    return section("charts", "Charts", figures(charts, room))


def figures(charts: Sequence[Chart], room: int) -> Markup:
    """The charts alone, without a section around them."""
    found = []
    for chart in charts:
        picture = _picture(chart, room)
        room -= len(picture.text.encode())
        found.append(_figure(chart, picture))
    return element("div", *found, class_="figures") if found else NOTHING


def _figure(chart: Chart, picture: Markup) -> Markup:
    caption = together((element("strong", chart.title), " ", chart.caption))
    return element("figure", picture, element("figcaption", caption), id=f"chart-{chart.name}")


def _picture(chart: Chart, room: int) -> Markup:
    """Returns the vector drawing if it fits, else the PNG, else a note with the file's name."""
    if len(chart.svg.encode()) <= room:
        return element("div", Markup(chart.svg), class_="paper")
    pixels = f"data:image/png;base64,{b64encode(chart.png).decode()}"
    if len(pixels) <= room:
        image = void("img", alt=chart.alt).text
        # `void` would cut an attribute as long as this one.
        return element("div", Markup(image.replace("<img", f'<img src="{pixels}"', 1)), class_="paper")
    return element("p", f"Too large for this page: plots/{chart.name}.png", class_="note")
