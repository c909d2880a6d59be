"""A test that hangs fails at its deadline, and the others run."""

import subprocess
import sys
from pathlib import Path

SOONER = """
from tests import conftest

conftest.DEADLINE_S = 0.5
"""
HANGING = """
import threading

import pytest


@pytest.fixture
def slow_to_end():
    yield
    threading.Event().wait()


def test_of_a_lock(slow_to_end):
    threading.Event().wait()


def test_behind_it():
    pass
"""


def test_a_test_that_hangs_fails_where_it_stands_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SOONER, encoding="utf-8")
    (tmp_path / "test_it.py").write_text(HANGING, encoding="utf-8")

    flags = ["-q", "-p", "tests.conftest", "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)]
    command, root = [sys.executable, "-m", "pytest", *flags], Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)

    assert "1 failed, 1 passed, 1 error" in done.stdout
    assert "threading.Event().wait()\n" in done.stdout
    assert done.stdout.count("its deadline has passed") >= 2
