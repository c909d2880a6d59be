"""What is left of a private Ray ends with it, also what no longer carries its mark."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.local_ray.reaper import MARK, clear

DEADLINE_S = 20
# As an agent of Ray, whose new name overwrites its variables.
FORGETFUL = f"env -u {MARK} sleep 1000 & echo $!; wait"


def wait_until_ended(process: psutil.Process) -> None:
    """Whoever takes up orphans may not have done so yet."""
    deadline = time.monotonic() + DEADLINE_S
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"{process} is still there"
            time.sleep(0.02)


def test_a_process_that_lost_its_mark_ends_with_the_group_that_it_is_in(tmp_path: Path) -> None:
    root = str(tmp_path / "lh-of-a-test")
    leader = subprocess.Popen(
        ["bash", "-c", FORGETFUL],
        env={**os.environ, MARK: root},
        process_group=0,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert leader.stdout
        child = psutil.Process(int(leader.stdout.readline()))
        assert clear(root)
        assert leader.wait(timeout=DEADLINE_S) == -signal.SIGKILL
        wait_until_ended(child)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait(timeout=DEADLINE_S)
        if leader.stdout:
            leader.stdout.close()


def test_a_marked_process_in_another_group_ends_without_that_group(tmp_path: Path) -> None:
    root = str(tmp_path / "lh-of-a-test")
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: root}) as member:
        assert os.getpgid(member.pid) == os.getpgid(0)
        assert clear(root)
        assert member.wait(timeout=DEADLINE_S) == -signal.SIGKILL
