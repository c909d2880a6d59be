"""The page in a real browser: silent, alone, sortable, readable in both schemes, as narrow as a phone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from reporting.analysis.findings import Findings
from reporting.charts.drawing import draw
from reporting.page import index_html
from tests.live.browser import Browser, Tab, find_chromium, open_page, running_chromium
from tests.unit.example_findings import empty_findings, example_findings, hostile_findings
from tests.unit.pages import many_cells, read

PHONE, A4 = 390, 718
PAGES = {"example": example_findings, "empty": empty_findings, "hostile": hostile_findings}

# Text against the nearest background that isn't transparent, by the formula of WCAG 2.
FAINT_TEXTS = """
(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = channels(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(svg *):not(script)")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(ground(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push([element.tagName, element.className, contrast]);
  }
  return faint;
})()
"""
WIDER_THAN_THE_PAGE = """
[...document.querySelectorAll("body *")].filter((one) =>
  !one.closest(".scroll, .paper, pre, nav, svg, .skip") && one.getBoundingClientRect().right > innerWidth + 1
).map((one) => one.tagName + "." + one.className)
"""
SCROLLS_SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
COLUMN = "[...document.querySelectorAll('#cell-table tbody tr')].map((row) => row.cells[%d].textContent)"
HEAD = "[...document.querySelectorAll('#cell-table thead th')]"


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
    return {name: _written(folder / f"{name}.html", made()) for name, made in PAGES.items()}


def _written(path: Path, findings: Findings) -> Path:
    path.write_text(index_html(findings, draw(findings)), encoding="utf-8")
    return path


def complaints(tab: Tab) -> list[Any]:
    """Of the page's own, of the browser about it, and of scripts that failed."""
    own = [one for one in tab.seen("Runtime.consoleAPICalled") if one["type"] in ("error", "warning")]
    about_it = [one["entry"] for one in tab.seen("Log.entryAdded")]
    return [*own, *about_it, *tab.seen("Runtime.exceptionThrown")]


def order_of(tab: Tab, title: str) -> tuple[list[str], str]:
    """The column's cells from top to bottom, and what its head says of their order."""
    index = tab.evaluate(f"{HEAD}.findIndex((head) => head.textContent.startsWith('{title}'))")
    return tab.evaluate(COLUMN % index), tab.evaluate(f"{HEAD}[{index}].getAttribute('aria-sort')")


def click(tab: Tab, title: str) -> None:
    head = f"{HEAD}.find((head) => head.textContent.startsWith('{title}'))"
    tab.evaluate(f"{head}.querySelector('button').click()")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_complained_of_and_nothing_is_asked_of_the_network(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with open_page(browser, pages[name]) as tab:
        requests = {one["request"]["url"] for one in tab.seen("Network.requestWillBeSent")}
        assert requests == {pages[name].as_uri()}
        assert complaints(tab) == []


def test_the_watch_of_these_tests_sees_a_page_that_misbehaves(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    wide = "<p style='width: 2000px; color: #999; background: #fff'>faint</p>"
    script = "<script>console.error(1); nothing()</script>"
    page.write_text(f"<!doctype html><img src='missing.png'>{wide}{script}")
    with open_page(browser, page) as tab:
        assert len(tab.seen("Network.requestWillBeSent")) == 2
        assert len(complaints(tab)) == 3
        assert tab.evaluate(SCROLLS_SIDEWAYS) is True
        assert tab.evaluate(WIDER_THAN_THE_PAGE) == ["P."]
        assert [name for name, *_ in tab.evaluate(FAINT_TEXTS)] == ["P"]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_the_page_never_scrolls_sideways(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    with open_page(browser, pages[name], width=width) as tab:
        assert tab.evaluate("innerWidth") == width
        assert tab.evaluate(SCROLLS_SIDEWAYS) is False
        assert tab.evaluate(WIDER_THAN_THE_PAGE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_printed_on_a4_nothing_is_cut_off_and_all_is_dark_on_white(
    browser: Browser, pages: dict[str, Path], scheme: Literal["light", "dark"]
) -> None:
    with open_page(browser, pages["example"], width=A4, scheme=scheme, media="print") as tab:
        assert tab.evaluate(SCROLLS_SIDEWAYS) is False
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.evaluate(FAINT_TEXTS) == []
        assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_background(
    browser: Browser, pages: dict[str, Path], scheme: Literal["light", "dark"]
) -> None:
    with open_page(browser, pages["example"], scheme=scheme) as tab:
        assert tab.evaluate(FAINT_TEXTS) == []


def test_light_and_dark_differ_and_neither_is_empty(browser: Browser, pages: dict[str, Path]) -> None:
    shots = []
    for scheme in ("light", "dark"):
        with open_page(browser, pages["example"], scheme=scheme) as tab:
            ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            shots.append((ground, tab.screenshot()))
    (light, light_shot), (dark, dark_shot) = shots
    assert light != dark
    assert min(len(light_shot), len(dark_shot)) > 20_000


def test_a_click_sorts_by_number_and_another_turns_the_order_around(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with open_page(browser, pages["example"]) as tab:
        as_reported, said = order_of(tab, "MFU")
        assert said == "none"
        click(tab, "MFU")
        falling, said = order_of(tab, "MFU")
        click(tab, "MFU")
        rising, said_then = order_of(tab, "MFU")
    known = sorted(float(text.split("\u202f")[0]) for text in as_reported if text != "–")
    unknown = ["–"] * (len(as_reported) - len(known))
    assert (said, said_then) == ("descending", "ascending")
    assert falling == [*(f"{value}\u202f%" for value in reversed(known)), *unknown]
    assert rising == [*(f"{value}\u202f%" for value in known), *unknown]


def test_the_keyboard_sorts_as_well_and_shows_where_it_is(browser: Browser, pages: dict[str, Path]) -> None:
    with open_page(browser, pages["example"]) as tab:
        tab.evaluate(f"{HEAD}[0].querySelector('button').focus()")
        tab.press("Tab")
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        tab.press("Enter")
        cells, said = order_of(tab, "Strategy")
    assert outline == "solid"
    assert said == "ascending"
    assert cells == sorted(cells)


def test_typing_narrows_a_table_to_rows_with_all_words(browser: Browser, pages: dict[str, Path]) -> None:
    with open_page(browser, pages["example"]) as tab:
        tab.evaluate("document.querySelector('[aria-controls=cell-table]').focus()")
        tab.call("Input.insertText", text="AMD zero1")
        shown = tab.evaluate(
            "[...document.querySelectorAll('#cell-table tbody tr')].filter((row) => row.offsetParent)"
            ".map((row) => row.textContent)"
        )
        said = tab.evaluate("document.querySelector('[aria-controls=cell-table] ~ output').textContent")
    assert said == "7 of 70"
    assert len(shown) == 7
    assert all("amd" in text and "zero1" in text for text in shown)


@pytest.mark.parametrize("name", PAGES)
def test_the_browser_reads_the_elements_that_are_written_and_repairs_nothing(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    source = pages[name].read_text(encoding="utf-8")
    with open_page(browser, pages[name]) as tab:
        parsed = f"new DOMParser().parseFromString({json.dumps(source)}, 'text/html')"
        found = tab.evaluate(f"[...{parsed}.querySelectorAll('*')].map((one) => one.tagName.toLowerCase())")
    assert found == [element.name for element in read(source).elements]


def test_every_id_is_there_once_with_the_real_charts(browser: Browser, pages: dict[str, Path]) -> None:
    with open_page(browser, pages["example"]) as tab:
        ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert tab.evaluate("document.querySelectorAll('figure svg').length") > 8
    assert len(ids) == len(set(ids))


def test_a_page_of_two_thousand_cells_sorts_too(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "many.html"
    page.write_text(index_html(many_cells(2_000), []), encoding="utf-8")
    with open_page(browser, page) as tab:
        click(tab, "Tokens/s")
        cells, said = order_of(tab, "Tokens/s")
        assert complaints(tab) == []
    assert (len(cells), said) == (2000, "descending")
    assert cells[0].startswith("324,185")
