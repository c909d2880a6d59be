"""This section shows measured cells beside the nearest published results. Pure."""

from reporting.analysis.findings import BesidePublished, Findings
from reporting.analysis.formatting import count, counted, number, short, times
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    bullets,
    details,
    left_out,
    note,
    numeric,
    section,
    table,
)

_MOST = 40


def published(findings: Findings) -> Markup:
    if not findings.published:
        return NOTHING
    shown = findings.published[:_MOST]
    columns = (
        TableColumn(title="Measured here"),
        TableColumn(title="Tokens/s per device", is_number=True),
        TableColumn(title="Published", is_number=True, hint="tokens/s per device, as its source says"),
        TableColumn(title="Ratio", is_number=True, hint="here over there; none for models of other sizes"),
        TableColumn(title="Source"),
        TableColumn(title="What differs"),
    )
    return section(
        "published",
        "Beside published results",
        table(
            Table(
                label="published-table",
                caption="The fastest cell of each group, model and dtype, beside the nearest result that "
                "somebody published for the same device",
                columns=columns,
                rows=[_row(one) for one in shown],
            )
        ),
        left_out(len(shown), len(findings.published), "cell", "findings.json has all"),
        note(
            "A yardstick, not a comparison: other software, other settings, measured by others in their own "
            "ways. Published results are in no other number of this report."
        ),
    )


def _row(found: BesidePublished) -> list[TableCell]:
    result = found.published
    source = element("a", short(result.source, 60), href=result.url)
    when = f" {result.date}" if result.date else ""
    what = f"{result.model} on {counted(result.devices or 0, 'device')}, S {count(result.seq_len)}"
    return [
        TableCell(
            element("span", f"{short(found.group, 40)}: {short(str(found.subject), 100)}", class_="setting")
        ),
        numeric(number(found.tokens_per_sec_per_device, 4), found.tokens_per_sec_per_device),
        numeric(number(result.tokens_per_sec_per_device, 4), result.tokens_per_sec_per_device),
        numeric(times(found.ratio), found.ratio),
        TableCell(together((source, when, " ", element("small", what)))),
        TableCell(details(counted(len(found.differences), "thing"), bullets(found.differences))),
    ]
