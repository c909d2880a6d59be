"""Signals that interrupt a command as Ctrl-C does."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.commandline.interrupts import interrupting_signals

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTS_AN_IMPORT = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name == "jobs.commandline.process_exit":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
"""
SCRIPTS = ("jobs/sweep.py", "jobs/train.py", "jobs/report.py")
ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Under ``nohup`` the tests would have been started with SIGHUP ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_it_interrupts_and_afterwards_signals_are_whose_they_were(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in ALL]
    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(one) for one in ALL] == before


def test_what_python_makes_of_an_interruption_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), interrupting_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as interrupted:
            raise RuntimeError("Error calling __set_name__") from interrupted


def test_an_error_of_its_own_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="itself"), interrupting_signals():
        raise ValueError("itself")


def test_what_nohup_ignores_interrupts_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_is_interrupted_ends_with_its_code_and_no_traceback() -> None:
    script = """
import os, signal
from jobs.commandline.process_exit import run

run(lambda: os.kill(os.getpid(), signal.SIGINT))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "longhaul: interrupted\n")


@pytest.mark.parametrize("command", [["-m", "jobs.cli", "status"], *(["-P", one] for one in SCRIPTS)])
def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(command: list[str], tmp_path: Path) -> None:
    """As in the first second, in which modules are imported."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_AN_IMPORT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command, "r"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "longhaul: interrupted\n")


def test_another_thread_has_no_signals_to_take() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def look() -> None:
        with interrupting_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(20)
    assert found == [before]


@pytest.mark.parametrize("number", ALL)
def test_a_stop_signal_after_a_command_has_returned_does_not_change_its_code(number: signal.Signals) -> None:
    """As from whoever asks until the process is gone."""
    script = f"""
import atexit, os
from jobs.commandline.process_exit import run

def main():
    atexit.register(os.kill, os.getpid(), {number:d})
    print("saved")
    return 3

run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "saved\n", "")
