"""This section explains the numbers and columns, and how to obtain them again. Pure."""

from reporting.analysis.findings import Findings
from reporting.analysis.method import DEFINITIONS, Command, how_to_repeat
from reporting.page.markup import Markup, element
from reporting.page.pieces import Table, TableCell, TableColumn, definitions, details, section, table
from reporting.results.columns import TABLES


def method() -> Markup:
    return section("method", "Method", definitions(DEFINITIONS), _glossary())


def repeat(findings: Findings) -> Markup:
    found = [_command(command) for command in how_to_repeat(findings)]
    return section("repeat", "How to repeat it", element("ol", *found, class_="commands"))


def _glossary() -> Markup:
    rows = [
        [TableCell(element("code", column.name)), TableCell(column.unit), TableCell(column.meaning)]
        for column in TABLES["metrics"]
    ]
    found = Table(
        label="glossary-table",
        caption="One row per run; what isn't known is empty",
        columns=(TableColumn(title="Column"), TableColumn(title="Unit"), TableColumn(title="Meaning")),
        rows=rows,
        is_sortable=False,
    )
    return details("The columns of metrics.csv and metrics.parquet", table(found))


def _command(command: Command) -> Markup:
    line = element("pre", element("code", command.line), tabindex=0)
    return element("li", element("p", command.purpose), line)
