"""The sentences with which a report begins."""

from reporting.analysis.conclusions import conclude
from reporting.analysis.selection import extent
from reporting.results.rows import Row
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
    assert "1,000 tokens/s per device with ddp at micro-batch 1" in answer[0]
    assert answer[-1] == "1 cell of 2 has no numbers: 1 oom."


def _runs(*throughputs: float, strategy: str, **changes: object) -> list[Row]:
    return [
        row(value, cell_id=f"{strategy}-{changes}", strategy=strategy, **changes) for value in throughputs
    ]


def _fastest(*found: Row) -> str:
    (said,) = (one for one in conclude("trial", "results", found).answer if "per device" in one)
    return said


def test_the_fastest_is_so_among_cells_of_the_same_sizes() -> None:
    usual = [*_runs(1000.0, strategy="ddp", world_size=2), *_runs(900.0, strategy="fsdp", world_size=2)]
    other = _runs(5000.0, strategy="zero1", world_size=2, seq_len=16)
    assert _fastest(*usual, *other) == (
        "At 2 devices, S=64 and fp32, llama-tiny is fastest per device with ddp at micro-batch 1 on nvidia: "
        "500 tokens/s each, from too few runs to be sure."
    )


def test_who_is_not_shown_to_be_slower_than_the_fastest_is_named() -> None:
    found = (
        *_runs(990.0, 1000.0, 1010.0, strategy="ddp"),
        *_runs(985.0, 995.0, 1005.0, strategy="fsdp"),
        *_runs(690.0, 700.0, 710.0, strategy="zero1"),
    )
    assert _fastest(*found).endswith(
        "1,000 tokens/s each; fsdp at micro-batch 1 on nvidia is not shown to be slower."
    )


def test_the_fastest_is_so_at_the_sizes_that_most_groups_have_and_its_settings_are_named() -> None:
    alone = [
        *_runs(9000.0, strategy="ddp", seq_len=16),
        *_runs(8000.0, strategy="fsdp", seq_len=16),
        *_runs(7000.0, strategy="zero1", seq_len=16),
    ]
    both = [
        *_runs(990.0, 1000.0, 1010.0, strategy="ddp", group="amd", fp8="tensorwise", cross_entropy="chunked"),
        *_runs(690.0, 700.0, 710.0, strategy="ddp"),
    ]
    assert _fastest(*alone, *both) == (
        "At 1 device, S=64 and fp32, llama-tiny is fastest per device with ddp at micro-batch 1 with chunked "
        "loss and tensorwise fp8 on amd: 1,000 tokens/s each."
    )


def test_the_same_setting_of_another_sweep_is_not_named_beside_itself() -> None:
    runs = [*_runs(990.0, 1000.0, 1010.0, strategy="ddp"), *_runs(700.0, 700.0, 700.0, strategy="fsdp")]
    again = _runs(985.0, 995.0, 1005.0, strategy="ddp", sweep="again")
    assert _fastest(*runs, *again).endswith("1,000 tokens/s each.")


def _first(*ratios: float) -> str:
    """The first sentence about two groups, whose cells differ by these ratios."""
    noise = (0.999, 1.0, 1.0, 1.001)
    found = [
        row(1000.0 * part * (ratio if group == "nvidia" else 1.0), group=group, cell_id=f"{group}-{number}",
            seq_len=64 + number)
        for number, ratio in enumerate(ratios)
        for group in ("amd", "nvidia")
        for part in noise
    ]  # fmt: skip
    return conclude("trial", "results", found).answer[0]


def test_the_first_sentence_names_the_winner_and_by_how_much() -> None:
    assert _first(1.06, 1.03, 1.1) == (
        "nvidia is faster than amd in all 3 cells: 1.06x the tokens/s in the median (cells: 1.03x to 1.10x)."
    )
    assert _first(0.8) == "amd is faster than nvidia in 1 cell: 1.25x the tokens/s (95 %: 1.25x to 1.25x)."


def test_where_the_cells_disagree_the_sentence_counts_both_sides() -> None:
    assert _first(1.1, 1.2, 0.9, 1.0) == (
        "nvidia is faster than amd in 2 of 4 cells, amd in 1, equivalent in 1; "
        "nvidia does 1.05x the tokens/s in the median (cells: 0.90x to 1.20x)."
    )


def test_where_each_group_is_faster_as_often_as_the_other_neither_is_called_faster() -> None:
    assert _first(1.2, 0.8, 1.0) == (
        "Neither amd nor nvidia is ahead in 3 cells: each is faster in 1, equivalent in 1; "
        "nvidia does 1.00x the tokens/s in the median (cells: 0.80x to 1.20x)."
    )


def test_the_side_that_failed_is_named() -> None:
    failed = [row(None, group="nvidia", cell_id="b", seq_len=65) for _ in range(4)]
    fine = [row(1000.0 + number, group=group, cell_id=f"{group}-{size}", seq_len=size)
            for number in range(4) for group, size in (("amd", 64), ("amd", 65), ("nvidia", 64))]  # fmt: skip
    first = conclude("trial", "results", [*fine, *failed]).answer[0]
    assert first.startswith(
        "Neither amd nor nvidia is shown to be faster in 2 cells: equivalent in 1, oom on nvidia in 1; "
    )


def test_cells_that_need_more_runs_are_counted_in_whole_sentences() -> None:
    def doubts(*numbers: int) -> str:
        rows = [
            row(1000.0 * (1.2 if group == "nvidia" else 1.0) + repeat, group=group, seq_len=64 + place,
                cell_id=f"{group}-{place}")
            for place, number in enumerate(numbers) for group in ("amd", "nvidia") for repeat in range(number)
        ]  # fmt: skip
        answer = conclude("trial", "results", rows).answer
        return next(said for said in answer if said.startswith("What could overturn it"))

    assert ": 1 cell needs more runs to be decided;" in doubts(2)
    assert ": 1 cell of 2 needs more runs to be decided;" in doubts(2, 5)
    assert ": 2 cells need more runs to be decided;" in doubts(2, 2)
    assert "fewer than 5 runs" not in doubts(2) and "fewer than 5 runs of a side in 1 cell" in doubts(4)


def test_where_nobody_is_shown_to_be_faster_nobody_is_named() -> None:
    assert _first(1.0, 1.0) == (
        "Neither amd nor nvidia is shown to be faster in 2 cells: equivalent in 2; "
        "nvidia does 1.00x the tokens/s in the median (cells: 1.00x to 1.00x)."
    )


def _grounds(said: str, *found: Row) -> str:
    return next(one for one in conclude("trial", "results", found).answer if one.startswith(said))


def test_runs_that_failed_beside_those_with_numbers_are_named() -> None:
    rows = [row(1000.0 + number, group=group, cell_id=group) for group in ("a", "b") for number in range(5)]
    failed = [row(None, group="b", cell_id="b", status="crash") for _ in range(3)]
    said = "3 runs of b failed in cells that have numbers from other runs"
    assert said in _grounds("What could overturn it", *rows, *failed)
    assert "failed" not in _grounds("What could overturn it", *rows)


def test_where_one_side_alone_has_two_sessions_nobody_says_that_all_was_one() -> None:
    rows = [row(1000.0 + number, group=group, cell_id=group) for group in ("a", "b") for number in range(5)]
    again = [row(1000.0, group="a", cell_id="a", session=2)]
    assert "since each side was measured in one session" in _grounds("What could", *rows)
    assert "since a side was measured in one session" in _grounds("What could", *rows, *again)
    assert "The verdict rests on 5 to 6 runs of each cell and side" in _grounds("The verdict", *rows, *again)
    assert "another day" not in _grounds("What could", *rows[:9], *again, row(1.0, group="b", session=2))


def test_text_that_is_no_day_is_none_of_those_on_which_was_measured() -> None:
    days = ("2026-11-25T10:00:00Z", "9999-99-99", "at noon on a day")
    rows = [row(1000.0, group=group, started_at=day) for group in ("a", "b") for day in days]
    assert _grounds("The verdict rests", *rows).endswith("side, measured on 2026-11-25.")


def test_numbers_that_can_not_be_true_together_are_in_the_answer() -> None:
    rows = [row(1000.0, group="a"), row(5000.0, group="b", mean_step_time_sec=0.064, cell_id="b")]
    said = _grounds("Mind the numbers", *rows)
    assert said == "Mind the numbers: those of 1 cell of b can't be true together (see the checks)."


def test_what_was_imported_is_never_called_the_fastest() -> None:
    rows = [row(1000.0, group="a"), row(5000.0, group="b", cell_id="b", imported=True)]
    assert _grounds("At 1 device", *rows).endswith(
        "does 1,000 tokens/s per device with ddp at micro-batch 1 on a."
    )


def test_where_one_comparison_is_open_the_other_does_not_contradict_it() -> None:
    noisy = (0.7, 0.9, 1.0, 1.1, 1.3)
    same = [row(1000.0 * part, group=group, cell_id=group) for group in ("a", "b") for part in noisy]
    best = [row(9000.0 * part, group="b", cell_id="fsdp", strategy="fsdp") for part in noisy]
    first, second, *_ = conclude("trial", "results", [*same, *best]).answer
    assert first.startswith("Neither a nor b is shown to be faster in 1 cell: undecided in 1;")
    assert second.startswith("Each at its best setting, b is faster than a in 1 question")
