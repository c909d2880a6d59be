"""From an error to its lines and its exit code: the nearest class counts, and nothing else is swallowed."""

from collections.abc import Callable

import pytest

from checkpointing.stores.contract import Denied, Missing, StoreError, Unavailable
from jobs.commandline.exit_codes import OF_STORES, run_command

CODES = {**OF_STORES, ValueError: 7}


def raises(error: BaseException) -> Callable[[], int]:
    def story() -> int:
        raise error

    return story


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreError("x"), 2),
        (Missing("x"), 2),
        (Unavailable("x"), 1),
        (Denied("x"), 1),
        (ValueError("x"), 7),
        (UnicodeError("x"), 7),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_nearest_class_decides(error: BaseException, code: int) -> None:
    assert run_command("stop", raises(error), CODES) == code


def test_what_the_command_returns_is_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("stop", lambda: 3, CODES) == 3
    assert capsys.readouterr().err == ""


def test_each_line_is_said_once_as_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("cluster show", raises(StoreError("a: wrong\nb: wrong")), CODES)
    said = capsys.readouterr()
    assert said.err == "longhaul cluster show: a: wrong\nlonghaul cluster show: b: wrong\n"
    assert said.out == ""


def test_of_several_processes_one_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("sweep", raises(StoreError("x")), CODES, is_main_process=False) == 2
    assert capsys.readouterr().err == ""


def test_an_error_that_nobody_foresaw_goes_on() -> None:
    with pytest.raises(LookupError):
        run_command("stop", raises(LookupError("x")), CODES)
