"""Ten kinds of store as pages in a real browser: silent, nothing too wide, no text over other text, no empty
panel. The stores are made up, *simulated*.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from reporting.charts.drawing import draw
from reporting.page import index_html
from tests.live.browser import Browser, find_chromium, open_page, running_chromium
from tests.live.reports.test_browser import (
    FAINT_TEXTS,
    SCROLLS_SIDEWAYS,
    WIDER_THAN_THE_PAGE,
    complaints,
)
from tests.unit.example_stores import example_stores

STORES = example_stores()
# In each picture, texts of which one covers more than a fifth of another; and panels in which nothing is.
TEXTS_OVER_TEXTS = """
[...document.querySelectorAll("figure svg")].flatMap((picture) => {
  const texts = [...picture.querySelectorAll("text")].filter((one) => one.textContent.trim());
  const boxes = texts.map((one) => [one.textContent.trim(), one.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], number) => boxes.slice(number + 1).filter(([_, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const smaller = Math.min(a.width * a.height, b.width * b.height);
    return wide > 0 && high > 0 && wide * high > smaller / 5;
  }).map(([other]) => text + " | " + other));
})
"""
EMPTY_PARTS = """
[...document.querySelectorAll("figure, section, table, .card, article")].filter((one) =>
  !one.textContent.trim() || one.getBoundingClientRect().height < 8
).map((one) => one.tagName + "#" + one.id)
"""
COVERED_SECTIONS = """
[...document.querySelectorAll("main > section")].filter((one, number, all) =>
  number && one.getBoundingClientRect().top < all[number - 1].getBoundingClientRect().bottom - 1
).map((one) => one.id)
"""
CUT_OFF_IN_TABLES = """
[...document.querySelectorAll("#comparison-table, #best-table, #matrix-table")].filter((one) =>
  one.parentElement.scrollWidth > one.parentElement.clientWidth + 1
).map((one) => one.id)
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on PATH: the page was not looked at in a browser")
    with running_chromium(program, tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in STORES}
    for name, findings in STORES.items():
        paths[name].write_text(index_html(findings, draw(findings)), encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_silent_and_has_no_part_that_is_too_wide_covered_or_empty(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    with open_page(browser, pages[name], width=width) as tab:
        assert complaints(tab) == []
        seen = {
            what: tab.evaluate(look)
            for what, look in {
                "scrolls sideways": SCROLLS_SIDEWAYS,
                "too wide": WIDER_THAN_THE_PAGE,
                "text over text": TEXTS_OVER_TEXTS,
                "empty": EMPTY_PARTS,
                "covered": COVERED_SECTIONS,
            }.items()
        }
    assert seen == {
        "scrolls sideways": False,
        "too wide": [],
        "text over text": [],
        "empty": [],
        "covered": [],
    }


@pytest.mark.parametrize("name", STORES)
def test_the_comparisons_fit_on_a_screen_of_1280_pixels(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with open_page(browser, pages[name], width=1280) as tab:
        assert tab.evaluate(CUT_OFF_IN_TABLES) == []


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(("scheme", "media"), [("dark", "screen"), ("light", "print")])
def test_dark_and_printed_all_text_can_be_read(
    browser: Browser,
    pages: dict[str, Path],
    name: str,
    scheme: Literal["light", "dark"],
    media: Literal["screen", "print"],
) -> None:
    if name == "many cells":
        pytest.skip("the contrast of 10,000 texts takes a minute; the same styles are in the other pages")
    with open_page(browser, pages[name], width=718, scheme=scheme, media=media) as tab:
        faint: Any = tab.evaluate(FAINT_TEXTS)
        assert (faint, tab.evaluate(SCROLLS_SIDEWAYS)) == ([], False)


def test_the_looks_see_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    text = "<text x='5' y='20'>one</text><text x='8' y='22'>two</text>"
    page.write_text(
        "<!doctype html><main><section id='a' style='height: 90px'>text<table id='best-table' "
        "style='width: 3000px'><tr><td>x</td></tr></table></section>"
        "<section id='b' style='margin-top: -50px'></section></main>"
        f"<figure id='c'><svg viewBox='0 0 90 40'>{text}</svg></figure>"
    )
    with open_page(browser, page) as tab:
        assert tab.evaluate(TEXTS_OVER_TEXTS) == ["one | two"]
        assert tab.evaluate(EMPTY_PARTS) == ["SECTION#b"]
        assert tab.evaluate(COVERED_SECTIONS) == ["b"]
        assert tab.evaluate(CUT_OFF_IN_TABLES) == ["best-table"]
