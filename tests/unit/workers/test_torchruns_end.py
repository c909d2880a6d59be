"""What becomes of a rank that waits for its peers when torchrun is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.launch import torchrun
from jobs.launch.torchrun import ended_with_torchrun

ROOT = Path(__file__).parents[3]
RANK = """
import threading
from jobs.launch.torchrun import ended_with_torchrun
with ended_with_torchrun(every_s=0.01):
    print("waits", flush=True)
    threading.Event().wait(30)
    print("waits no more", flush=True)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=False)"


def test_a_rank_that_waits_for_its_peers_ends_with_torchrun_and_says_so() -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, RANK],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=ROOT,
        env={**os.environ, "TORCHELASTIC_RUN_ID": "a"},
    )
    with launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "waits\n"
        launcher.kill()
        told = launcher.stdout.read()
    assert told == "torchrun has ended while this rank was starting, so it ends too\n"


def test_without_torchrun_a_parent_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[int]()
    monkeypatch.setattr(torchrun, "_PARENT", -1)
    for run_id, expected in ((None, []), ("a", [1])):
        if run_id:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
        else:
            monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        threads = set(torchrun.threading.enumerate())
        with ended_with_torchrun(every_s=0.01, end=ended.append):
            for thread in set(torchrun.threading.enumerate()) - threads:
                thread.join(30)
        assert ended == expected
