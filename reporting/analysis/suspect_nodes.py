"""This module says how each node did in a table's runs, by the rule in ``node_scores``. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reporting.results.node_scores import NODES_OWN_FAILURES, NodeOutcome, Score, scores
from reporting.results.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """One node's record. ``num_failed`` of its ``num_runs`` failed in a way that can be the node's own fault;
    ``num_in_row`` of those came after its last success.

    A failed run counts only for the nodes of the ranks that failed. ``origins`` says whether the numbers were
    simulated or imported.
    """

    node: str
    group: str | None
    origins: tuple[str, ...]
    num_runs: int
    num_failed: int
    num_in_row: int
    is_suspicious: bool

    @property
    def failed_share(self) -> float:
        return self.num_failed / self.num_runs

    @property
    def verdict(self) -> str:
        return "suspicious" if self.is_suspicious else ""


def node_summaries(rows: Iterable[Row]) -> tuple[NodeSummary, ...]:
    """Returns one summary per node that any run names, the most failures in a row first."""
    by_node: dict[tuple[str | None, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.finished_at or "", row.source)):
        for node in row.nodes:
            by_node.setdefault((row.group, node), []).append(row)
    found = [_summary(node, group, there) for (group, node), there in by_node.items()]
    return tuple(sorted(found, key=_badness))


def num_without_nodes(rows: Iterable[Row]) -> int:
    """Counts the failures that could be a node's own but for which no node was recorded."""
    return sum(row.status in NODES_OWN_FAILURES and not row.nodes for row in rows)


def _summary(node: str, group: str | None, rows: Sequence[Row]) -> NodeSummary:
    score = _score(node, rows)
    return NodeSummary(
        node=node,
        group=group,
        origins=_origins(rows),
        num_runs=score.num_runs,
        num_failed=score.num_failed,
        num_in_row=score.num_in_row,
        is_suspicious=score.is_suspicious,
    )


def _score(node: str, rows: Sequence[Row]) -> Score:
    """Scores one node. ``rows`` must be in the order in which the runs ended."""
    history = [
        NodeOutcome(node=node, run=row.run_id or "", cell=row.cell_id or "", status=row.status)
        for row in rows
    ]
    (score,) = scores(history)
    return score


def _origins(rows: Sequence[Row]) -> tuple[str, ...]:
    is_simulated, is_imported = any(row.simulated for row in rows), any(row.imported for row in rows)
    return (*(["simulated"] if is_simulated else []), *(["imported"] if is_imported else []))


def _badness(found: NodeSummary) -> tuple[int, int, str, str]:
    return -found.num_in_row, -found.num_failed, found.group or "", found.node
