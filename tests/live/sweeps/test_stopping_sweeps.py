"""A stop signal to every process of a sweep, Ray's and its workers' too, in each of its phases.

The same of a training in a cluster of this machine: `longhaul cluster local`.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.live.command_line import DEADLINE_S, QUICK, below, rows, run, running, sweep_command, write_spec
from tests.live.machines.test_mixed import left_processes
from tests.live.runs.test_stopping import PAIR, is_training, stopped_step, wait_until
from tests.live.runs.test_stopping_everything import GONE_AFTER_S, NUMBERS, send

pytestmark = [pytest.mark.soak]
SWEEP = QUICK.replace("steps: 4", "steps: 200").replace("repeats: 1", "repeats: 3")
TRAINING = """
name: r
model: llama-tiny
strategy: zero2
world_size: 2
group: nvidia
seq_len: 32
steps: 100000
data: {samples: 64}
checkpoint: {every_steps: 1000000, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """By this temporary directory of the command its processes can be told, whoever their parent is."""
    with tempfile.TemporaryDirectory(prefix="lht-", dir="/tmp") as path:
        yield Path(path)
        for process in left_processes(Path(path)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def stop_all_once(
    is_so: Callable[["subprocess.Popen[str]"], bool], command: list[str], number: signal.Signals, folder: Path
) -> tuple[int, str]:
    """Its code and what it said. Nothing is left of what it had started, nor of Ray's files."""
    with running(command, TMPDIR=str(folder)) as process:
        wait_until(lambda: is_so(process))
        send(number, left_processes(folder))
        output, _ = process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not left_processes(folder) and not [*folder.glob("lh-*")], GONE_AFTER_S)
    assert "Traceback" not in output
    return process.returncode, output


def has_begun(process: "subprocess.Popen[str]") -> bool:
    return "python" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")


def has_started(words: str) -> Callable[["subprocess.Popen[str]"], bool]:
    return lambda process: bool(below(process.pid, words))


@NUMBERS
def test_a_sweep_ends_in_each_phase_and_the_same_command_goes_on(
    number: signal.Signals, tmp_path: Path, folder: Path
) -> None:
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path, SWEEP), store)

    # While Python loads it, the signal itself ends it: nothing has been started.
    code, output = stop_all_once(has_begun, command, number, folder)
    assert code in (-number, 130), output
    phases = [has_started("gcs_server"), has_started("raylet"), lambda _: len(rows(store)) >= 1]
    for phase in phases:
        code, output = stop_all_once(phase, command, number, folder)
        assert (code, output.splitlines()[-1]) == (
            130,
            "longhaul sweep: interrupted; the same command goes on",
        )
    kept = {row["run_id"]: row for row in rows(store)}
    done = run(command)

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["run_id"]: row for row in rows(store)}
    assert [row["status"] for row in found.values()] == ["ok"] * 6
    assert kept.items() <= found.items()
    assert len(kept) >= 1


@NUMBERS
def test_a_training_in_a_cluster_of_this_machine_saves_before_that_ends(
    number: signal.Signals, tmp_path: Path, folder: Path
) -> None:
    store, file = tmp_path / "store", tmp_path / "pair.yaml"
    file.write_text(PAIR, encoding="utf-8")
    longhaul = [sys.executable, "-m", "jobs.cli"]
    train = [*longhaul, "train", str(write_spec(tmp_path, TRAINING)), "--store", str(store)]
    is_going = is_training(store, beyond=1)

    code, output = stop_all_once(
        lambda _: is_going(), [*longhaul, "cluster", "local", str(file), "--", *train], number, folder
    )

    assert code == 0, output
    assert stopped_step(store, output) > 0
