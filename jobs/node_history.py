"""A sweep's rows -> how its nodes did, and what to say of those that fail. Pure."""

from collections.abc import Iterable

from cluster.scores import Outcome, scores
from reporting.records import RunRecord


def node_history(records: Iterable[RunRecord]) -> list[Outcome]:
    """In the order in which the runs ended, one for each node of each run whose nodes are known."""
    return [
        Outcome(node=node, run=record.run_id, cell=record.cell_id, status=record.status)
        for record in sorted(records, key=lambda record: (record.finished_at, record.run_id))
        for node in _nodes(record)
    ]


def suspicions(records: Iterable[RunRecord]) -> list[str]:
    """A line for each node that failed several runs by itself, the worst first."""
    return [
        f"node {score.node} is suspicious: {score.num_failed} of its {score.num_runs} runs failed, the last "
        f"{score.num_in_row} in a row; --exclude-node {score.node} leaves it out"
        for score in scores(node_history(records))
        if score.is_suspicious
    ]


def _nodes(record: RunRecord) -> tuple[str, ...]:
    """Of a failed run those of the ranks that failed."""
    found = record.per_rank.node if record.per_rank else record.error.nodes if record.error else ()
    return tuple(dict.fromkeys(found))
