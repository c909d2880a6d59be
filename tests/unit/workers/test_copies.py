"""Copies of the optimizer's state: how many there are, and whether each lies within a node."""

from dataclasses import replace

import pytest

from jobs.sweeps.grid import Run
from jobs.training.task.job import Recipe, Strategy, split_copies
from tests.unit.builders import cells_of, measurement, rank_summary, record, sweep

AXES = {"strategy": ["fsdp"], "world_size": [4], "shard_within": [2]}


@pytest.mark.parametrize(
    ("strategy", "within", "copies"),
    [
        ("ddp", None, 8),
        ("fsdp", None, 1),
        ("fsdp", 2, 4),
        ("fsdp", 8, 1),
        ("zero1", None, 1),
        ("zero3", None, 1),
    ],
)
def test_how_many_copies_of_the_state_there_are(strategy: Strategy, within: int | None, copies: int) -> None:
    recipe: Recipe = cells_of(sweep())[0].recipe
    found = replace(recipe, strategy=strategy, world_size=8, shard_within=within)
    assert (found.num_copies, found.num_copies * found.ranks_per_copy) == (copies, 8)


@pytest.mark.parametrize(
    ("within", "nodes", "first"),
    [
        (None, "abcd", None),
        (1, "abab", None),
        (2, "aabb", None),
        (2, "aaab", 2),
        (2, "abab", 0),
        (4, "aaaabbbb", None),
        (4, "aabbbbaa", 0),
        (4, "aaaa", None),
    ],
)
def test_a_copy_on_several_nodes_is_named_by_its_first_rank(
    within: int | None, nodes: str, first: int | None
) -> None:
    text = split_copies(within, nodes)
    assert text is None if first is None else f"the {within} ranks from {first} on share" in str(text)


def test_a_row_warns_of_a_copy_on_several_nodes() -> None:
    spec = sweep(axes=AXES)
    run = Run(cell=cells_of(spec)[0], repeat=1, order=1)
    for nodes, num_warnings in (("aabb", 0), ("abab", 1)):
        ranks = tuple(rank_summary(rank, node=node) for rank, node in enumerate(nodes))
        row = record(spec, run, measurement(run.run_id, ranks=ranks))
        assert (row.shard_within, len(row.warnings)) == (2, num_warnings)
