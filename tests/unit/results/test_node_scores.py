"""Which nodes failed several runs by themselves."""

import pytest

from reporting.results.node_scores import NodeOutcome, Score, Suspicion, scores, suspicious_nodes


def history(node: str, *endings: str) -> list[NodeOutcome]:
    """Each ending is ``cell status``."""
    pairs = (ending.split() for ending in endings)
    return [
        NodeOutcome(node=node, run=f"{cell}-{index}", cell=cell, status=status)
        for index, (cell, status) in enumerate(pairs)
    ]


def suspects(*endings: str, suspicion: Suspicion | None = None) -> tuple[str, ...]:
    return suspicious_nodes(scores(history("n", *endings), suspicion))


def test_a_node_that_failed_several_runs_in_a_row_is_suspicious() -> None:
    assert suspects("a ok", "a crash", "b hang", "c device_mismatch") == ("n",)


@pytest.mark.parametrize(
    "endings",
    [
        ("a crash", "b crash"),
        ("a crash", "b crash", "c ok", "d crash"),
        ("a oom", "b invalid_loss", "c timeout", "d unschedulable"),
        ("a crash", "a crash", "a crash", "a crash"),
        (),
    ],
)
def test_too_few_failures_or_another_reason_for_them_is_no_suspicion(endings: tuple[str, ...]) -> None:
    assert suspects(*endings) == ()


def test_a_run_that_needed_too_much_memory_neither_ends_nor_lengthens_the_row() -> None:
    assert suspects("a crash", "b oom", "c crash", "d lost") == ("n",)
    assert suspects("a crash", "b oom", "c crash") == ()


def test_thresholds_are_the_callers() -> None:
    one = Suspicion(runs=1, cells=1)
    assert suspects("a crash", suspicion=one) == ("n",)
    assert suspects("a oom", suspicion=one) == ()


def test_the_most_suspicious_node_comes_first_and_all_are_counted() -> None:
    told = [
        *history("good", "a ok", "b oom"),
        *history("bad", "a crash", "b ok", "c crash", "d hang"),
        *history("worse", "a crash", "b crash", "c crash"),
    ]
    assert scores(told) == (
        Score(node="worse", num_runs=3, num_failed=3, num_in_row=3, is_suspicious=True),
        Score(node="bad", num_runs=4, num_failed=3, num_in_row=2, is_suspicious=False),
        Score(node="good", num_runs=2, num_failed=0, num_in_row=0, is_suspicious=False),
    )
