"""Charts inside the page, as drawings while there is room for them. Pure."""

import re
from base64 import b64encode
from collections.abc import Sequence

from reporting.findings import Chart
from reporting.page.markup import NOTHING, Markup, element, together, void
from reporting.page.pieces import section

_PROLOG = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_NAMESPACE = re.compile(r'\s+xmlns(:\w+)?="[^"]*"')
_NAMED = re.compile(r'\b(id="|href="#|url\(#)')


def pictures(charts: Sequence[Chart], room: int) -> Markup:
    """In at most about ``room`` bytes; what finds no place there is named."""
    if not charts:
        return NOTHING
    figures = []
    for chart in charts:
        picture = _picture(chart, room)
        room -= len(picture.text.encode())
        figures.append(_figure(chart, picture))
    return section("charts", "Charts", element("div", *figures, class_="figures"))


def _figure(chart: Chart, picture: Markup) -> Markup:
    caption = together((element("strong", chart.title), " ", chart.caption))
    return element("figure", picture, element("figcaption", caption), id=f"chart-{chart.name}")


def _picture(chart: Chart, room: int) -> Markup:
    """The drawing if there is room, else the same as pixels, else where it lies."""
    drawing = _drawing(chart)
    if len(drawing.encode()) <= room:
        return element("div", Markup(drawing), class_="paper", role="img", aria_label=chart.alt)
    pixels = f"data:image/png;base64,{b64encode(chart.png).decode()}"
    if len(pixels) <= room:
        # Not through `element`, which would cut an attribute as long as this one.
        return Markup(f'<div class="paper">{_image(pixels, chart.alt)}</div>')
    return element("p", f"Too large for this page: plots/{chart.name}.png", class_="note")


def _image(source: str, alt: str) -> str:
    return void("img", alt=alt).text.replace("<img", f'<img src="{source}"', 1)


def _drawing(chart: Chart) -> str:
    """Fit to stand beside others: what it names, it names for itself alone."""
    bare = _NAMESPACE.sub("", _PROLOG.sub("", chart.svg)).strip()
    return _NAMED.sub(lambda found: f"{found[1]}{chart.name}-", bare)
