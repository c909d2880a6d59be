"""A page as a reader of HTML sees it, for tests that ask what is where."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import cycle, islice

from reporting.analysis.findings import Chart, Findings
from reporting.page import index_html
from tests.unit.example_findings import example_findings

_VOID = frozenset(("meta", "img", "br", "hr", "input", "link"))
_HEADINGS = ("h1", "h2", "h3", "h4")


@dataclass(slots=True)
class Element:
    """``inside`` are the ids of all that it stands in."""

    name: str
    attributes: dict[str, str]
    inside: tuple[str, ...] = ()
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that stands in it, however deep."""
        return "".join(self.pieces)

    @property
    def shown(self) -> str:
        """The same as words, with one space between them and between elements."""
        return " ".join(" ".join(self.pieces).split())


@dataclass(slots=True)
class Page:
    """``problems`` is what isn't balanced; ``elements`` are in the order in which they begin."""

    elements: list[Element] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def named(self, *names: str) -> list[Element]:
        return [element for element in self.elements if element.name in names]

    def by_id(self, found: str) -> Element:
        return next(element for element in self.elements if element.attributes.get("id") == found)

    def within(self, found: str, *names: str) -> list[Element]:
        return [element for element in self.named(*names) if found in element.inside]

    @property
    def headings(self) -> list[tuple[int, str]]:
        return [(int(element.name[1]), element.shown) for element in self.named(*_HEADINGS)]


def read(html: str) -> Page:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.page.problems += [f"<{element.name}> never ends" for element in reader.open]
    return reader.page


def page_of(findings: Findings, charts: Sequence[Chart] = ()) -> Page:
    return read(index_html(findings, charts))


def chart(
    name: str, svg: str = '<svg viewBox="0 0 1 1"><path d="M0 0"/></svg>', png: bytes = b"png"
) -> Chart:
    return Chart(name=name, title=f"Title {name}", caption="A caption.", alt=f"Alt {name}", png=png, svg=svg)


def many_cells(count: int) -> Findings:
    """The example's cells over and over, each with a failed run that left a long log."""
    found = example_findings()
    log = tuple(f"line {number}: {'<&>' * 400}" for number in range(200))
    failed = replace(found.rows[0], status="crash", error_reason="no <reason>" * 500, error_log_tail=log)
    cells = tuple(
        replace(cell, cell_id=f"{cell.cell_id}-{index}", num_failed=1, rows=(*cell.rows, failed))
        for index, cell in enumerate(islice(cycle(found.cells), count))
    )
    comparisons = tuple(islice(cycle(found.comparisons), count))
    rows = tuple(row for cell in cells for row in cell.rows)
    return replace(found, cells=cells, comparisons=comparisons, rows=rows)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        inside = tuple(one.attributes["id"] for one in self.open if "id" in one.attributes)
        found = Element(tag, {name: value or "" for name, value in attrs}, inside=inside)
        self.page.elements.append(found)
        if tag not in _VOID:
            self.open.append(found)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1].name != tag:
            self.page.problems.append(f"</{tag}> at {self.getpos()} ends nothing")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.pieces.append(data)
