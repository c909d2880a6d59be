"""How each node did in the runs that it took part in; who failed several by itself is suspicious. Pure.

A run that needs too much memory or whose loss is no number fails anywhere, and a cell that fails wherever
it goes says nothing about a node: so only some outcomes are held against one, and of several cells.
"""

from collections.abc import Iterable
from dataclasses import dataclass

NODES_OWN_FAILURES = frozenset({"crash", "hang", "device_mismatch", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """How one run ended, for one of the nodes that it ran on; ``status`` is ``ok`` or the kind of failure."""

    node: str
    run: str
    cell: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """So many runs of so many different cells failed one after another, without one that went well."""

    runs: int = 3
    cells: int = 2
    statuses: frozenset[str] = NODES_OWN_FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``num_failed`` of ``num_runs`` failed in one of the ways that are held against a node, the last
    ``num_in_row`` without a success since. A run that failed in another way counts among the runs only.
    """

    node: str
    num_runs: int
    num_failed: int
    num_in_row: int
    is_suspicious: bool


def scores(history: Iterable[NodeOutcome], suspicion: Suspicion | None = None) -> tuple[Score, ...]:
    """One per node, the most failures in a row first. ``history`` is in the order in which runs ended."""
    by_node: dict[str, list[NodeOutcome]] = {}
    for outcome in history:
        by_node.setdefault(outcome.node, []).append(outcome)
    found = [_score(node, outcomes, suspicion or Suspicion()) for node, outcomes in by_node.items()]
    return tuple(sorted(found, key=lambda score: (-score.num_in_row, -score.num_failed, score.node)))


def suspicious_nodes(found: Iterable[Score]) -> tuple[str, ...]:
    """The names to leave out, in the order of the scores."""
    return tuple(score.node for score in found if score.is_suspicious)


def _score(node: str, outcomes: list[NodeOutcome], suspicion: Suspicion) -> Score:
    row: list[NodeOutcome] = []
    for outcome in outcomes:
        if outcome.status == "ok":
            row = []
        elif outcome.status in suspicion.statuses:
            row.append(outcome)
    return Score(
        node=node,
        num_runs=len(outcomes),
        num_failed=sum(outcome.status in suspicion.statuses for outcome in outcomes),
        num_in_row=len(row),
        is_suspicious=len(row) >= suspicion.runs
        and len({outcome.cell for outcome in row}) >= suspicion.cells,
    )
