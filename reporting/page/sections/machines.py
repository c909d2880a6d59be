"""This section shows the groups' hardware and software side by side, with differences marked. Pure."""

from collections.abc import Sequence

from reporting.analysis.findings import Findings
from reporting.analysis.formatting import counted, short
from reporting.analysis.selection import most_relevant
from reporting.analysis.sides.environments import Fact, facts, group_of, groups_of
from reporting.page.markup import NOTHING, Markup, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    chip,
    details,
    left_out,
    note,
    origin_chips,
    section,
    table,
)

_MOST_GROUPS = 8
_MOST_FACTS = 100


def machines(findings: Findings) -> Markup:
    groups, found = groups_of(findings.rows), facts(findings.rows)
    if not found:
        return NOTHING
    first = [fact for fact in found if fact.differs or fact.kind in ("hardware", "software")]
    rest = [fact for fact in found if fact not in first]
    return section(
        "machines",
        "Hardware and software",
        _summary(groups, found),
        _table("machine-table", "What the runs of each group ran on", first, findings),
        _rest(rest, findings) if rest else NOTHING,
        left_out(_MOST_GROUPS, len(groups), "group", "metrics.csv has the others"),
    )


def _summary(groups: Sequence[str], found: Sequence[Fact]) -> Markup:
    different = [fact.name for fact in found if fact.differs]
    if len(groups) < 2:
        return note("One group: there is nothing to compare it with.")
    if not different:
        return note("Nothing that was recorded differs between the groups.")
    things = "1 thing differs" if len(different) == 1 else f"{len(different):,} things differ"
    return note(f"{things} between the groups: {', '.join(different[:12])}.")


def _rest(found: Sequence[Fact], findings: Findings) -> Markup:
    names = counted(len(found), "fact, package or variable", "facts, packages and variables")
    summary = f"{names} that don't differ"
    return details(summary, _table("same-table", "Facts, packages and variables", found, findings))


def _table(label: str, caption: str, found: Sequence[Fact], findings: Findings) -> Markup:
    groups = groups_of(findings.rows)[:_MOST_GROUPS]
    columns = [TableColumn(title=""), *(TableColumn(title=short(group, 60)) for group in groups)]
    shown = most_relevant(found, _MOST_FACTS, lambda fact: not fact.differs)
    rows = [_origins(groups, findings)] if label == "machine-table" else []
    rows += [_row(fact) for fact in shown]
    return table(Table(label=label, caption=caption, columns=columns, rows=rows, is_sortable=False))


def _origins(groups: Sequence[str], findings: Findings) -> list[TableCell]:
    cells = []
    for group in groups:
        rows = [row for row in findings.rows if group_of(row) == group]
        flags = ("simulated" if any(row.simulated for row in rows) else "") + (
            " imported" if any(row.imported for row in rows) else ""
        )
        chips = origin_chips(flags.split())
        cells.append(TableCell(together((counted(len(rows), "run"), chips))))
    return [TableCell("results"), *cells]


def _row(fact: Fact) -> list[TableCell]:
    name = short(f"{fact.name} ({fact.kind})" if fact.kind in ("package", "variable") else fact.name)
    mark = together((" ", chip("differs", "open"))) if fact.differs else NOTHING
    return [
        TableCell(together((name, mark))),
        *(TableCell(short(value, 120)) for value in fact.values[:_MOST_GROUPS]),
    ]
