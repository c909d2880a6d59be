"""How nodes did in a report: who failed several runs by itself is named, and is whom the scores name."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reporting.analysis.suspect_nodes import NodeSummary, node_summaries, num_without_nodes
from reporting.results.node_scores import NodeOutcome, Score, scores
from reporting.results.rows import Row
from tests.unit.example_findings import empty_findings
from tests.unit.pages import page_of
from tests.unit.result_rows import row

BAD = [("a", "crash"), ("b", "hang"), ("c", "crash")]
GOOD = [("a", "ok"), ("b", "ok"), ("c", "oom")]
endings = st.lists(
    st.tuples(
        st.sampled_from("nm"), st.sampled_from("abc"), st.sampled_from(["ok", "crash", "hang", "oom", "lost"])
    ),
    max_size=12,
)


def ended(node: str, *endings: tuple[str, str]) -> list[Row]:
    return [
        row(None, nodes=(node,), cell_id=cell, status=status, finished_at=f"2026-01-01T00:00:{second:02}")
        for second, (cell, status) in enumerate(endings)
    ]


def test_the_worst_node_comes_first_and_is_called_suspicious() -> None:
    bad, good = node_summaries([*ended("good", *GOOD), *ended("bad", *BAD)])
    assert bad == NodeSummary(
        node="bad", group="nvidia", origins=(), num_runs=3, num_failed=3, num_in_row=3, is_suspicious=True
    )
    assert (bad.failed_share, bad.verdict) == (1.0, "suspicious")
    assert (good.node, good.num_failed, good.verdict) == ("good", 0, "")


def test_the_order_of_the_rows_is_that_in_which_the_runs_ended() -> None:
    found = ended("n", *BAD, ("d", "ok"))
    assert not node_summaries(found[::-1])[0].is_suspicious
    assert node_summaries(ended("n", ("d", "ok"), *BAD)[::-1])[0].is_suspicious


def test_a_row_of_two_nodes_counts_for_both_and_one_without_any_for_none() -> None:
    assert [found.node for found in node_summaries([row(nodes=("n", "m")), row()])] == ["m", "n"]
    assert num_without_nodes([row(None, status="crash"), row(None, status="oom"), *ended("n", *BAD)]) == 1


def test_numbers_that_nobody_measured_here_say_so_for_the_node_too() -> None:
    found = [*ended("n", *GOOD), replace(ended("n", ("d", "ok"))[0], simulated=True, imported=True)]
    assert node_summaries(found)[0].origins == ("simulated", "imported")


@given(endings)
def test_the_report_suspects_the_nodes_that_the_scores_do(told: list[tuple[str, str, str]]) -> None:
    rows = [
        row(None, nodes=(node,), cell_id=cell, status=status, finished_at=f"2026-01-01T00:00:{second:02}")
        for second, (node, cell, status) in enumerate(told)
    ]
    history = [
        NodeOutcome(node=node, run=str(index), cell=cell, status=status)
        for index, (node, cell, status) in enumerate(told)
    ]
    assert [_score(found) for found in node_summaries(rows)] == [*scores(history)]


def _score(found: NodeSummary) -> Score:
    return Score(
        node=found.node,
        num_runs=found.num_runs,
        num_failed=found.num_failed,
        num_in_row=found.num_in_row,
        is_suspicious=found.is_suspicious,
    )


def test_the_page_names_the_suspicious_node() -> None:
    found = replace(empty_findings(), rows=(*ended("good", *GOOD), *ended("bad", *BAD)))
    (table,) = [one.text for one in page_of(found).named("table") if one.attributes["id"] == "node-table"]
    assert table.index("bad") < table.index("suspicious") < table.index("good")
