"""How a process of ours ends: with its exit code, whatever its threads are in the middle of."""

import os
import subprocess
import sys

import pytest

from tests.live.command_line import ROOT

BEGINS = """
import atexit, sys, threading, time
import torch
from jobs.commandline.process_exit import run

def multiply():
    while True:
        torch.ones(256, 256) @ torch.ones(256, 256)

def main():
    atexit.register(print, "goodbye")
    threading.Thread(target=multiply, daemon=True).start()
    time.sleep(0.2)
    sys.stdout.write("said. ")
"""


def ended(last_line: str, runs_with: str = "run(main)") -> "subprocess.CompletedProcess[str]":
    script = f"{BEGINS}    {last_line}\n\n{runs_with}\n"
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("last_line", "code", "told"),
    [
        ("return 3", 3, ""),
        # Each loads torch, for seconds.
        pytest.param("return 0", 0, "", marks=pytest.mark.soak),
        pytest.param("sys.exit()", 0, "", marks=pytest.mark.soak),
        pytest.param("sys.exit(2)", 2, "", marks=pytest.mark.soak),
        ("sys.exit('why')", 1, "why"),
        ("raise ValueError('why')", 1, "ValueError: why"),
        ("raise KeyboardInterrupt", 130, "longhaul: interrupted\n"),
    ],
)
def test_a_process_ends_with_its_code_while_a_thread_is_inside_torch(
    last_line: str, code: int, told: str
) -> None:
    done = ended(last_line)
    assert done.returncode == code, done.stderr
    assert done.stdout == "said. goodbye\n"
    assert told in done.stderr


def test_without_it_python_aborts() -> None:
    """Once this fails, it has become of no use."""
    assert ended("return 3", "sys.exit(main())").returncode == -6


def test_output_that_nobody_reads_changes_no_exit_code() -> None:
    script = f"{BEGINS}    return 0\n\nrun(main)\n"
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == 0
