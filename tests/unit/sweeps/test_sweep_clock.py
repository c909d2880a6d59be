"""What a sweep says of the time that it may still take."""

import pytest

from jobs.sweeps.sweep_clock import SweepClock


def clock(total: int = 16, guess_s: float | None = 100.0) -> SweepClock:
    return SweepClock(total=total, guess_s=guess_s, began_s=1000.0)


def test_before_the_first_run_has_ended_what_is_left_is_called_a_guess() -> None:
    assert clock().text(1010.0) == "0/16 runs, 0:00:10 elapsed, ~0:01:42 remaining (a guess)"


def test_a_guess_that_was_too_low_is_not_repeated() -> None:
    found = clock()
    found.started(1100.0)
    assert found.text(1113.0) == "0/16 runs, 0:01:53 elapsed, slower than guessed"


def test_for_a_device_of_unknown_speed_nothing_is_guessed() -> None:
    assert clock(guess_s=None).text(1010.0) == "0/16 runs, 0:00:10 elapsed, ? remaining"


def test_the_start_of_ray_does_not_count_as_time_of_the_first_run() -> None:
    found = clock(total=3)
    found.started(1060.0)
    found.finished(1070.0)
    assert found.text(1070.0) == "1/3 runs, 0:01:10 elapsed, 0:00:20 remaining"
    assert found.text(1075.0) == "1/3 runs, 0:01:15 elapsed, 0:00:15 remaining"


def test_a_run_that_takes_longer_than_those_before_leaves_no_negative_time() -> None:
    found = clock(total=2)
    found.started(1000.0)
    found.finished(1010.0)
    assert found.text(1090.0) == "1/2 runs, 0:01:30 elapsed, 0:00:00 remaining"


def test_a_search_may_take_more_runs_than_expected() -> None:
    found = clock(total=1)
    found.started(1000.0)
    found.finished(1010.0)
    found.finished(1020.0)
    assert found.text(1020.0) == "2/2 runs, 0:00:20 elapsed, 0:00:00 remaining"


@pytest.mark.parametrize("guess_s", [None, 6 * 86_400.0])
def test_the_line_fits_sixty_columns_for_days(guess_s: float | None) -> None:
    found = clock(total=999, guess_s=guess_s)
    assert len(found.text(1000.0 + 86_399)) <= 60
