"""Pieces are what sections are made of: headings with anchors, tables that scroll and sort, chips. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from reporting.analysis.formatting import UNKNOWN, counted, is_known
from reporting.page.markup import NOTHING, Content, Markup, element, together

_TALL = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of a table. ``hint`` is a tooltip for a title that needs an explanation."""

    title: str
    is_number: bool = False
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table. Sorting goes by ``order``, or by the text if that is None; unknown numbers come
    last.
    """

    content: Content
    order: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. The first cell of each row is the row's header. ``label`` must be unique on the page."""

    label: str
    caption: Content
    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[TableCell]]
    is_sortable: bool = True


def section(name: str, title: str, *content: Content) -> Markup:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")


def table(found: Table) -> Markup:
    """Puts the table into a box that scrolls, also by keyboard, so that the page itself never scrolls
    sideways.
    """
    head = element("tr", *(_head(column) for column in found.columns))
    body = together(_row(found.columns, row) for row in found.rows)
    caption = element("caption", element("span", found.caption), id=f"{found.label}-caption")
    whole = element(
        "table",
        caption,
        element("thead", head),
        element("tbody", body),
        class_="sortable" if found.is_sortable else None,
        id=found.label,
    )
    kind = "scroll tall" if len(found.rows) > _TALL else "scroll"
    return element(
        "div", whole, class_=kind, role="region", tabindex=0, aria_labelledby=f"{found.label}-caption"
    )


def without_repetition(found: Table, candidates: Iterable[int]) -> Table:
    """Removes candidate columns whose value is the same in all rows. The caption says that value once."""
    rows = found.rows
    same = [index for index in candidates if len(rows) > 1 and len({row[index].content for row in rows}) == 1]
    if not same:
        return found
    kept = [index for index in range(len(found.columns)) if index not in same]
    said = together(
        together((found.columns[index].title, " ", rows[0][index].content, ". ")) for index in same
    )
    return replace(
        found,
        caption=together((found.caption, ". In all rows the same: ", said)),
        columns=[found.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in rows],
    )


def without_unknown(found: Table, candidates: Iterable[int]) -> Table:
    """Removes candidate columns of which no row knows anything. The caption names them."""
    unknown = {index for index in candidates if all(row[index].content == UNKNOWN for row in found.rows)}
    if not unknown or not found.rows:
        return found
    kept = [index for index in range(len(found.columns)) if index not in unknown]
    names = "; ".join(found.columns[index].title for index in sorted(unknown))
    return replace(
        found,
        caption=together((found.caption, f". Known of no row: {names}")),
        columns=[found.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in found.rows],
    )


def _head(column: TableColumn) -> Markup:
    return element(
        "th", column.title, scope="col", class_="n" if column.is_number else None, title=column.hint
    )


def _row(columns: Sequence[TableColumn], cells: Sequence[TableCell]) -> Markup:
    found = []
    for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        order = repr(cell.order) if is_known(cell.order) else None
        kind = "n" if column.is_number else None
        name, scope = ("th", "row") if index == 0 else ("td", None)
        found.append(element(name, cell.content, scope=scope, class_=kind, data_order=order))
    return element("tr", *found)


def numeric(text: str, order: float | None, note: str = "") -> TableCell:
    """Makes a cell for a number. ``note``, such as an interval, follows in small print."""
    if not note:
        return TableCell(text, order)
    return TableCell(together((text, " ", element("small", note))), order)


def chip(text: str, tone: str = "plain") -> Markup:
    return element("span", text, class_=f"chip {tone}")


def origin_chips(flags: Iterable[str], whose: str = "") -> Markup:
    """Returns chips that mark simulated and imported numbers. Every number that was not measured here must
    carry them.
    """
    found = [flag for flag in ("simulated", "imported") if flag in flags]
    return together(together((" ", chip(f"{whose}{flag}", "origin"))) for flag in found)


def details(summary: Content, *content: Content) -> Markup:
    return element("details", element("summary", summary), *content)


def bullets(items: Iterable[Content], kind: str | None = None) -> Markup:
    found = [element("li", item) for item in items]
    return element("ul", *found, class_=kind) if found else NOTHING


def definitions(pairs: Iterable[tuple[Content, Content]]) -> Markup:
    found = [element("div", element("dt", term), element("dd", text)) for term, text in pairs]
    return element("dl", *found)


def note(*content: Content) -> Markup:
    return element("p", *content, class_="note")


def left_out(shown: int, there: int, noun: str, where: str) -> Markup:
    """Returns a note that says how many are shown, or nothing if all are."""
    if shown >= there:
        return NOTHING
    return note(f"{shown:,} of {counted(there, noun)} are shown; {where}.")
