"""How nodes did according to a sweep's rows, as they are read back from its store."""

from dataclasses import replace

import pytest

from jobs.sweeps.grid import Run
from jobs.sweeps.score_table import suspicions
from jobs.training.task.measurement import Failure, Measurement
from reporting.analysis.suspect_nodes import node_summaries
from reporting.results.records import RunRecord, read_record
from reporting.results.result_rows import row_of
from reporting.results.rows import Row
from tests.unit.builders import CRASH, cells_of, measurement, rank_summary, record, sweep

SPEC = sweep(axes={"strategy": ["ddp", "fsdp"], "world_size": [1, 2]}, repeats=5)
CELLS = cells_of(SPEC)
ON_BAD = replace(CRASH, nodes=("bad",))


def ended(second: int, outcome: Measurement | Failure, *, cell: int = 0) -> RunRecord:
    run = Run(cell=CELLS[cell], repeat=1, order=1)
    row = replace(record(SPEC, run, outcome), finished_at=f"2026-01-02T03:04:{second:02}.000+00:00")
    return read_record(row.to_json())


def on(*nodes: str) -> Measurement:
    ranks = tuple(rank_summary(rank, node=node) for rank, node in enumerate(nodes))
    return measurement("run", num_ranks=len(nodes), ranks=ranks)


def rows(*records: RunRecord) -> list[Row]:
    return [row_of(record.to_json(), record.run_id) for record in records]


def test_a_run_counts_for_each_of_its_nodes_once() -> None:
    found = node_summaries(rows(ended(2, ON_BAD, cell=1), ended(1, on("m", "n", "m"))))
    assert [(node.node, node.num_runs, node.num_failed) for node in found] == [
        ("bad", 1, 1),
        ("m", 1, 0),
        ("n", 1, 0),
    ]


def test_a_run_that_was_never_placed_counts_for_no_node() -> None:
    assert node_summaries(rows(ended(1, Failure(status="unschedulable", reason="too large")))) == ()


def test_a_node_that_failed_several_cells_is_named_with_what_leaves_it_out() -> None:
    records = [ended(1, on("good")), *(ended(2 + cell, ON_BAD, cell=cell) for cell in (0, 1, 2))]
    assert suspicions(rows(*records)) == [
        "node bad is suspicious: 3 of its 3 runs failed, the last 3 in a row; "
        "--exclude-node bad leaves it out"
    ]
    assert suspicions(rows(*records, ended(9, on("bad")))) == []


@pytest.mark.parametrize("node", ["n" * 12, "n" * 56])
def test_a_failed_row_names_its_nodes_as_a_measured_one_does(node: str) -> None:
    failed, measured = ended(1, replace(CRASH, nodes=(node,))), ended(1, on(node))
    assert row_of(failed.to_json(), "a").nodes == row_of(measured.to_json(), "b").nodes == ("n" * 12,)


def test_a_failed_row_of_an_older_version_knows_no_node() -> None:
    plain = ended(1, ON_BAD).to_json().replace(b',"nodes":["bad"]', b"")
    older = read_record(plain)
    assert older.error is not None
    assert (older.error.nodes, row_of(plain, "a").nodes) == ((), ())
