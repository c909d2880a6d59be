"""What a report's first sentences say of three groups and more: what was shown, and nothing else."""

from typing import Any

import pytest

from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import Findings, Price, Prices
from reporting.markdown.report import report_md
from reporting.page import index_html
from reporting.results.rows import Row
from tests.unit.pages import page_of
from tests.unit.result_rows import row

_NOISE = (0.999, 1.0, 1.0, 1.001)


def runs(group: str, speed: float, noise: tuple[float, ...] = _NOISE, **changes: Any) -> list[Row]:
    return [row(speed * part, group=group, cell_id=f"{group} {changes}", **changes) for part in noise]


def found(*rows: list[Row]) -> Findings:
    return conclude("trial", "results", [each for own in rows for each in own])


def test_a_group_that_ran_none_of_its_cells_is_not_compared_with_the_leader() -> None:
    rows = runs("amd", 1000.0), runs("cpu", 1100.0), runs("nvidia", 1200.0), runs("tpu", 50.0, seq_len=16)
    answer = found(*rows).answer
    assert answer[0] == (
        "nvidia is faster than amd, cpu in all cells of both, and not compared with tpu, at the same "
        "settings."
    )
    assert "Not compared with any group, since no other ran the same: tpu." in answer


def test_a_group_that_the_leader_is_not_shown_to_beat_is_named() -> None:
    few = runs("cpu", 2300.0, (1.0, 1.0, 1.0))
    assert found(runs("amd", 1000.0), few, runs("nvidia", 2400.0)).answer[0] == (
        "nvidia is faster than amd in all cells of both, and not shown to be faster than cpu, at the same "
        "settings."
    )


def test_who_is_faster_in_some_cells_and_slower_in_others_is_not_faster() -> None:
    speeds = {"amd": (1000.0,) * 3, "cpu": (900.0,) * 3, "nvidia": (1100.0, 1100.0, 950.0)}
    rows = [
        runs(group, speed, seq_len=64 * number)
        for group, own in speeds.items()
        for number, speed in enumerate(own, start=1)
    ]
    assert found(*rows).answer[0] == (
        "nvidia is faster than cpu in all cells of both, and faster than amd in more cells than slower, at "
        "the same settings."
    )


def test_where_the_leader_is_so_only_at_its_best_both_are_said() -> None:
    rows = runs("amd", 1000.0), runs("cpu", 1100.0), runs("nvidia", 1200.0), runs("tpu", 9.0, strategy="fsdp")
    assert found(*rows).answer[0] == (
        "At the same settings nvidia is faster than amd, cpu in all cells of both, and not compared with "
        "tpu. Each at its best, it is faster than every other group."
    )


def test_a_failed_group_is_not_beaten_and_nobody_leads_where_two_do() -> None:
    failed = [row(None, group="cpu", cell_id="cpu") for _ in _NOISE]
    assert found(runs("amd", 1000.0), failed, runs("nvidia", 1200.0)).answer[0] == (
        "nvidia is faster than amd in all cells of both, and not shown to be faster than cpu, at the same "
        "settings."
    )
    two = runs("a", 1.0), runs("b", 2.0), runs("c", 1.0, seq_len=16), runs("d", 2.0, seq_len=16)
    assert found(*two).answer[0].startswith("b is faster than a in 1 cell")


@pytest.mark.parametrize("count", [7, 12])
def test_of_many_groups_the_answer_is_short_and_no_sentence_is_cut_off(count: int) -> None:
    told = found(*(runs(f"group-{number:02}", 1000.0 + 100 * number) for number in range(count)))
    last = f"group-{count - 1:02}"
    num_pairs = count * (count - 1) // 2
    assert told.answer[0] == f"{last} is faster than every other group, at the same settings."
    assert all(one.startswith(f"{last} is faster than group-") for one in told.answer[1:7])
    assert told.answer[7] == f"{num_pairs - 6} further pairs of groups: see the table of comparisons."
    shown = page_of(told).by_id("answer").shown
    assert all(sentence in shown for sentence in told.answer)


def test_of_many_groups_with_prices_the_table_has_the_other_pairs() -> None:
    rows = [one for number in range(7) for one in runs(f"group-{number}", 1000.0 + 100 * number)]
    prices = Prices(
        currency="USD",
        groups=tuple(Price(group=f"group-{number}", per_device_hour=1.0) for number in range(7)),
    )
    answer = conclude("trial", "results", rows, prices=prices).answer
    assert sum("is worth" in one for one in answer) == 6
    assert "15 further pairs of groups: see the table of break-even prices." in answer


def test_sentences_beyond_those_of_a_screen_are_folded_away_and_not_left_out() -> None:
    rows = [
        runs(group, 1000.0, model=f"model-{number:02}") for number in range(25) for group in ("amd", "cpu")
    ]
    told = found(*rows)
    assert len(told.answer) > 21
    answer = page_of(told).by_id("answer")
    assert all(sentence in answer.shown for sentence in told.answer)
    assert f"{len(told.answer) - 21} further sentences" in answer.shown


def test_names_of_200_letters_leave_room_for_the_verdict() -> None:
    told = found(runs("a" * 200, 1000.0), runs("b" * 200, 1200.0), runs("c" * 200, 1300.0))
    text = report_md(told, [])
    assert all(sentence.replace("_", "\\_") in text for sentence in told.answer[:4])
    assert all(len(sentence) < 600 for sentence in told.answer)


def test_two_groups_without_any_variance_have_a_page() -> None:
    equal = (1.0, 1.0, 1.0, 1.0)
    told = found(runs("amd", 1000.0, equal), runs("nvidia", 1000.0, equal))
    assert "left:50.0%;width:2.0%" in index_html(told, [])
