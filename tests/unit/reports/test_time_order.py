"""Whether time may be the reason for a difference: one group after the other, and speeds that drift."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.conclusions import conclude
from reporting.analysis.inspections.seen import Seen
from reporting.analysis.inspections.time_order import drift, one_after_the_other, trends
from reporting.results.rows import Row
from tests.unit.result_rows import row

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def runs(group: str, *, begin_min: float, every_min: float, speeds: list[float], cells: int = 1) -> list[Row]:
    """One run after the other, of as many cells in turn; each takes a minute."""
    found = []
    for number, speed in enumerate(speeds):
        started = NOON + timedelta(minutes=begin_min + every_min * number)
        cell = number % cells
        found.append(
            row(speed * (cell + 1), group=group, cell_id=f"{group}-{cell}", seq_len=64 + cell,
                started_at=started.isoformat(), finished_at=(started + timedelta(minutes=1)).isoformat())
        )  # fmt: skip
    return found


def order(*found: Row) -> list[Seen]:
    return list(one_after_the_other(summarise(found)))


def drifts(*found: Row) -> list[Seen]:
    return list(drift(summarise(found)))


def test_groups_that_were_measured_in_turn_are_well() -> None:
    amd = runs("amd", begin_min=0, every_min=4, speeds=[1000.0] * 5)
    nvidia = runs("nvidia", begin_min=2, every_min=4, speeds=[1000.0] * 5)
    (seen,) = order(*amd, *nvidia)
    assert (seen.level, seen.subject) == ("ok", "amd and nvidia")


def test_groups_that_were_measured_one_after_the_other_are_named_with_what_lay_between() -> None:
    amd = runs("amd", begin_min=0, every_min=1, speeds=[1000.0] * 5)
    nvidia = runs("nvidia", begin_min=125, every_min=1, speeds=[1100.0] * 5)
    (seen,) = order(*amd, *nvidia)
    assert seen.level == "warning"
    assert (
        seen.found.replace("\u202f", " ") == "were measured one after the other in 1 cell, up to 2.00 h apart"
    )
    answer = conclude("trial", "results", [*amd, *nvidia]).answer
    assert any(said.startswith("Mind the time: amd and nvidia were measured one after") for said in answer)


def test_groups_that_share_no_cell_or_do_not_say_when_are_not_looked_at() -> None:
    assert order(*runs("amd", begin_min=0, every_min=1, speeds=[1000.0])) == []
    assert order(row(group="amd", cell_id="a"), row(group="nvidia")) == []
    noon = row(group="amd", cell_id="a", started_at="noon", finished_at="then")
    assert order(noon, replace(noon, group="nvidia", cell_id="b")) == []


@pytest.mark.parametrize(("change", "said"), [(-0.04, "slower"), (0.04, "faster")])
def test_a_group_that_drifts_is_named_whatever_its_cells_are(change: float, said: str) -> None:
    dice = Random(1)
    speeds = [1000 * (1 + change * number / 29 + 0.005 * dice.gauss(0, 1)) for number in range(30)]
    (seen,) = drifts(*runs("amd", begin_min=0, every_min=2, speeds=speeds, cells=6))
    assert (seen.level, seen.subject) == ("warning", "amd")
    assert f"% {said} from the first to the last third of its 30 runs" in seen.found


def test_noise_without_an_order_is_no_drift() -> None:
    dice, num_false = Random(2), 0
    for _ in range(300):
        speeds = [1000 * (1 + 0.02 * dice.gauss(0, 1)) for _ in range(20)]
        (seen,) = drifts(*runs("amd", begin_min=0, every_min=2, speeds=speeds, cells=4))
        num_false += seen.level != "ok"
    assert num_false <= 3


def test_a_drift_too_small_to_matter_and_too_few_runs_say_nothing() -> None:
    small = [1000 + 0.2 * number for number in range(20)]
    (seen,) = drifts(*runs("amd", begin_min=0, every_min=2, speeds=small))
    assert seen.level == "ok"
    assert drifts(*runs("amd", begin_min=0, every_min=2, speeds=[1000.0, 900.0, 800.0])) == []


def _steps(growth: float, number: int = 40) -> tuple[float, ...]:
    """Each step a little noisy, from 1 s on by ``growth`` in all."""
    return tuple(1 + growth * step / number + 0.004 * (step * 7 % 5 - 2) for step in range(number))


def _windows(*growths: float) -> Seen:
    found = [row(1000.0, cell_id="c", raw_step_times=_steps(growth)) for growth in growths]
    (seen,) = trends(summarise(found))
    return seen


def test_steps_that_get_slower_within_the_window_are_told() -> None:
    seen = _windows(0.2, 0.2, 0.0)
    assert seen.level == "warning"
    assert "slower within the window of 2 of 3 runs" in seen.found
    assert _windows(-0.3).found.startswith("steps got") and "faster" in _windows(-0.3).found


def test_one_run_of_several_and_steps_without_trend_are_fine() -> None:
    assert _windows(0.2, 0.0, 0.0).level == "ok"
    assert _windows(0.0, 0.001).level == "ok"
    assert list(trends(summarise([row(1000.0, raw_step_times=_steps(0.5, 10))]))) == []


def test_a_time_without_a_zone_says_not_when() -> None:
    times = {"started_at": "2026-11-25T12:00:00", "finished_at": "2026-11-25T12:01:00"}
    assert order(row(group="amd", cell_id="a", **times), row(group="nvidia", **times)) == []


def test_a_cell_of_two_sweeps_was_measured_in_the_time_of_both() -> None:
    early = runs("amd", begin_min=0, every_min=1, speeds=[1000.0] * 2)
    late = [
        replace(one, sweep="later") for one in runs("amd", begin_min=90, every_min=1, speeds=[1000.0] * 2)
    ]
    between = runs("nvidia", begin_min=45, every_min=1, speeds=[1000.0] * 2)
    (seen,) = order(*early, *late, *between)
    assert seen.level == "ok"


def test_cells_of_two_runs_show_no_drift() -> None:
    speeds = [1000 * (1 + 0.004 * number) for number in range(20)]
    assert drifts(*runs("amd", begin_min=0, every_min=2, speeds=speeds, cells=10)) == []
