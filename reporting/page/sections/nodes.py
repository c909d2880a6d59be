"""This section shows how each node did, suspicious nodes first. Pure."""

from reporting.analysis.findings import Findings
from reporting.analysis.formatting import count, counted, fraction, short
from reporting.analysis.suspect_nodes import NodeSummary, node_summaries, num_without_nodes
from reporting.page.markup import NOTHING, Markup, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    chip,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
)

MOST_NODES = 100


def nodes(findings: Findings) -> Markup:
    found = node_summaries(findings.rows)
    if not found:
        return NOTHING
    columns = (
        TableColumn(title="Group"),
        TableColumn(title="Node"),
        TableColumn(title="Runs", is_number=True),
        TableColumn(title="Failed", is_number=True, hint="in a way that can be the node's own"),
        TableColumn(title="Share", is_number=True),
        TableColumn(title="In a row", is_number=True, hint="failures since the last run that went well"),
        TableColumn(title="Verdict"),
    )
    shown = found[:MOST_NODES]
    whole = Table(
        label="node-table",
        caption="How the runs went on each node, the worst first",
        columns=columns,
        rows=[_node(node) for node in shown],
    )
    rest = left_out(len(shown), len(found), "node", "metrics.csv has the others")
    return section("nodes", "Nodes", table(whole), rest, _unknown(num_without_nodes(findings.rows)))


def _node(found: NodeSummary) -> list[TableCell]:
    return [
        TableCell(together((short(found.group, 60), origin_chips(found.origins)))),
        TableCell(short(found.node, 60)),
        numeric(count(found.num_runs), found.num_runs),
        numeric(count(found.num_failed), found.num_failed),
        numeric(fraction(found.failed_share), found.failed_share),
        numeric(count(found.num_in_row), found.num_in_row),
        TableCell(chip(found.verdict, "bad") if found.is_suspicious else ""),
    ]


def _unknown(number: int) -> Markup:
    return note(f"{counted(number, 'failure')} of which no node was recorded.") if number else NOTHING
