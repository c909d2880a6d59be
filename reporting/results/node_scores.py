"""Node scores say how each node did in its runs; a node that fails several runs in a row is suspicious. Pure.

Some failures are not the node's: a run that needs too much memory, or whose loss is not finite, fails on any
node. A cell that fails on every node says nothing about one of them. So only the failures in
``NODES_OWN_FAILURES`` count against a node, and only if they come from several cells.
"""

from collections.abc import Iterable
from dataclasses import dataclass

NODES_OWN_FAILURES = frozenset({"crash", "hang", "device_mismatch", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """How one run ended, for one of the nodes that it ran on. ``status`` is ``ok`` or the kind of failure."""

    node: str
    run: str
    cell: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A node is suspicious after ``runs`` failures in a row, from at least ``cells`` different cells, with no
    success between them.
    """

    runs: int = 3
    cells: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One node's record. ``num_failed`` of its ``num_runs`` failed in a way that counts against a node;
    ``num_in_row`` of those came after its last success. Other failures count in ``num_runs`` only.
    """

    node: str
    num_runs: int
    num_failed: int
    num_in_row: int
    is_suspicious: bool


def scores(history: Iterable[NodeOutcome], suspicion: Suspicion | None = None) -> tuple[Score, ...]:
    """Returns one score per node, the most failures in a row first. ``history`` must be in the order in which
    runs ended.
    """
    by_node: dict[str, list[NodeOutcome]] = {}
    for outcome in history:
        by_node.setdefault(outcome.node, []).append(outcome)
    found = [_score(node, outcomes, suspicion or Suspicion()) for node, outcomes in by_node.items()]
    return tuple(sorted(found, key=lambda score: (-score.num_in_row, -score.num_failed, score.node)))


def suspicious_nodes(found: Iterable[Score]) -> tuple[str, ...]:
    """Returns the names of suspicious nodes, which are to be left out, in the order of the scores."""
    return tuple(score.node for score in found if score.is_suspicious)


def _score(node: str, outcomes: list[NodeOutcome], suspicion: Suspicion) -> Score:
    row: list[NodeOutcome] = []
    for outcome in outcomes:
        if outcome.status == "ok":
            row = []
        elif outcome.status in NODES_OWN_FAILURES:
            row.append(outcome)
    return Score(
        node=node,
        num_runs=len(outcomes),
        num_failed=sum(outcome.status in NODES_OWN_FAILURES for outcome in outcomes),
        num_in_row=len(row),
        is_suspicious=len(row) >= suspicion.runs
        and len({outcome.cell for outcome in row}) >= suspicion.cells,
    )
