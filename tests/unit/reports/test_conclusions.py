"""The sentences with which a report begins."""

from reporting.analysis.conclusions import conclude
from reporting.analysis.selection import extent
from reporting.results.unfinished import Unfinished
from tests.unit.result_rows import row


def test_a_report_where_every_cell_failed_begins_with_that_and_why() -> None:
    reasons = ("CUDA out of memory", "CUDA out of memory", "rank 3 died")
    rows = [
        row(None, cell_id=f"cell-{number}", strategy=strategy, error_reason=reason)
        for number, (strategy, reason) in enumerate(zip(("ddp", "fsdp", "zero1"), reasons, strict=True))
    ]
    assert conclude("trial", "results", rows).answer == (
        "All 3 cells failed: 3 oom. There are no numbers. The most frequent reason: CUDA out of memory.",
    )
    assert conclude("trial", "results", rows[:1]).answer[0].startswith("The only cell failed: 1 oom.")


def test_a_report_of_an_unfinished_sweep_says_what_is_missing() -> None:
    unfinished = (Unfinished(sweep="trial", num_runs=16, num_missing=9),)
    found = conclude("trial", "results", [row()] * 7, unfinished=unfinished)
    assert found.answer[-1] == (
        "Sweep trial is not finished: 9 of its 16 runs are missing; the same command measures them."
    )
    assert extent(found)[0] == "7 runs, 7 of them ok, 9 more are missing"


def test_where_one_cell_has_numbers_the_others_come_last() -> None:
    rows = [row(), row(None, cell_id="other", strategy="fsdp")]
    answer = conclude("trial", "results", rows).answer
    assert "fastest" in answer[0]
    assert answer[-1] == "1 cell of 2 has no numbers: 1 oom."
