"""This module prepares a chart's SVG for a page, light or dark, beside other charts. Pure."""

import re
from collections.abc import Set
from html import escape

# Charts use these two for text and background; the page replaces them with its own colours.
INK = "#0a0b0c"
SURFACE = "#fdfefe"

_PAGE_COLOURS = {INK: "currentColor", SURFACE: "var(--surface, Canvas)"}
_ID = re.compile(r'\sid="([^"]*)"')
_TAG = re.compile(r"<[^>]*>")
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]*)')
_FONT = re.compile(r"font: (?:(\d+|bold) )?([\d.]+)px '[^']*'(?:, [^;\"]*)?")
_FONTS = "'DejaVu Sans', Verdana, sans-serif"


def fit_for_page(drawn: str, *, name: str, label: str, cut_top: float) -> str:
    """Returns ``drawn`` without its first ``cut_top`` points, which hold the title that the page prints
    itself.

    The result scales with its container, up to one and a half times its natural size. It takes the page's
    text colour, and its ids begin with ``name``. Screen readers read ``label``.
    """
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    # Only tags are changed: the text between them is what people wrote.
    pointed_at = {found[2] for tag in _TAG.findall(body) for found in _REFERENCE.finditer(tag)}
    prefix = re.sub(r"[^a-z0-9]+", "-", name)
    body = _TAG.sub(lambda tag: _tag(tag[0], prefix, pointed_at), body)
    return _root(drawn, label, cut_top) + re.sub(r"<defs>\s*</defs>|<g/>|\n\s*(?=\n)", "", body)


def _tag(tag: str, prefix: str, pointed_at: Set[str]) -> str:
    """Rewrites one tag. Ids that nothing refers to are removed; the others get ``prefix``, so that no two
    charts share one.
    """
    tag = _ID.sub(lambda found: f' id="{prefix}-{found[1]}"' if found[1] in pointed_at else "", tag)
    tag = _REFERENCE.sub(lambda found: f"{found[1]}{prefix}-{found[2]}", tag)
    tag = _FONT.sub(_font, tag)
    for drawn_colour, page_colour in _PAGE_COLOURS.items():
        tag = tag.replace(drawn_colour, page_colour)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"| font-family: [^;]*;', "", tag)
    # A hundredth of a point is finer than anybody can see.
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", tag)


def _root(drawn: str, label: str, cut_top: float) -> str:
    width, height = _size(drawn)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 {cut_top:g} {width:g} {height - cut_top:g}" role="img" aria-label="{escape(label)}" '
        f'font-family="{_FONTS}" stroke-linejoin="round" '
        f'style="display: block; width: 100%; height: auto; max-width: {1.5 * width:.0f}px">'
    )


def _size(drawn: str) -> tuple[float, float]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert found, "an SVG that we drew has a viewBox"
    return float(found[1]), float(found[2])


def _font(found: re.Match[str]) -> str:
    weight = f"font-weight: {found[1]}; " if found[1] else ""
    return f"{weight}font-size: {found[2]}px"
