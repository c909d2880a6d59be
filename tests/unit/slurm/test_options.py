"""Slurm's words that a user gives: wall times, and options of sbatch."""

import pytest

from jobs.commandline.usage_error import SpecError
from jobs.slurm.options import directive, options_of, seconds_of, stop_before


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("2:30", 150),
        ("12:00:00", 43200),
        ("1-0", 86400),
        ("1-6", 108000),
        ("1-6:30", 109800),
        ("2-00:00:01", 172801),
        ("UNLIMITED", None),
        ("infinite", None),
        (None, None),
    ],
)
def test_a_wall_time_is_read_as_slurm_reads_it(time: str | None, seconds: int | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    "time",
    ["0", "-5", "0:30", "", "1h", "1:2:3:4", "99999999", "9" * 5000, "1-", "٣", "10\n", "10 --wrap=id"],
)
def test_an_absurd_wall_time_is_refused(time: str) -> None:
    with pytest.raises(SpecError, match=r"^--time: "):
        seconds_of(time)


def test_a_job_is_asked_to_stop_five_minutes_before_its_end_or_in_its_last_quarter() -> None:
    assert stop_before(None, None) == stop_before(None, 86400) == 300
    assert stop_before(None, 600) == 150
    assert stop_before(30, 60) == 30


@pytest.mark.parametrize(("asked", "time_s"), [(60, 60), (70000, None)])
def test_a_stop_that_fits_in_no_wall_time_is_refused(asked: int, time_s: int | None) -> None:
    with pytest.raises(SpecError, match=r"^--stop-before: "):
        stop_before(asked, time_s)


def test_options_of_sbatch_are_split_as_a_shell_does() -> None:
    assert options_of("-p gpu '--comment=a b'", "--sbatch") == ("-p", "gpu", "--comment=a b")
    assert directive(("-p", "gpu", "--comment=a b")) == '#SBATCH -p gpu "--comment=a b"'


@pytest.mark.parametrize(
    "text",
    [
        "gpu",
        "--comment='a\nb'",
        "--comment='a\"b'",
        "--comment='a\\b'",
        '--comment="it\'s"',
        "--comment='open",
        "--array=1-9",
        "--wrap=id",
        "--signal=TERM",
        "--no-requeue",
        "--export=NONE",
    ],
)
def test_options_that_would_break_the_script_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^--sbatch: "):
        options_of(text, "--sbatch")
