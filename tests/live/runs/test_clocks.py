"""A training whose machine's clock is set while it goes on: it saves as often, and its ledger closes."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from reporting.long_runs.summarising import long_run
from tests.live.command_line import DEADLINE_S, run, running, write_spec
from tests.live.machines.test_mixed import wait_until

HOUR_S, DAY_S = 3600.0, 86_400.0
# It is stopped once enough was seen.
SPEC = """
name: r
model: llama-tiny
seq_len: 32
steps: 100000
data: {samples: 100000}
checkpoint: {every_s: 0.4, retention: {last: 2, epochs: false}}
record: {flush_s: 1, tensorboard: false}
"""
# Read before anything else is, so that every module's time.time is this one.
CLOCK = """
import os, pathlib, time

def shown(real=time.time, file=pathlib.Path(os.environ["TEST_CLOCK"])):
    return real() + float(file.read_text())

time.time = shown
"""


@pytest.mark.soak
@pytest.mark.parametrize("jump_s", [-HOUR_S, DAY_S])
def test_a_clock_that_is_set_changes_neither_cadence_nor_ledger(jump_s: float, tmp_path: Path) -> None:
    store, clock = tmp_path / "store", tmp_path / "clock"
    clock.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}", "TEST_CLOCK": str(clock)}
    command = [sys.executable, "-m", "jobs.cli", "train", str(write_spec(tmp_path, SPEC))]
    command += ["--store", str(store), "--executor", "inline"]
    started_s = time.monotonic()

    with running(command, **environment) as process:
        wait_until(lambda: num_saved(store) >= 2)
        clock.write_text(str(jump_s))
        before = num_saved(store)
        wait_until(lambda: num_saved(store) >= before + 3)
        process.terminate()
        output, _ = process.communicate(timeout=DEADLINE_S)
    took_s = time.monotonic() - started_s
    first = long_run(LocalStore(store), "r")
    assert process.returncode == 0, output
    assert first is not None and first.wall_sec is not None
    assert 0 < first.wall_sec <= took_s
    assert sum(first.phases.values()) == pytest.approx(first.wall_sec, rel=0.005)

    last = first.num_steps + 5
    again = run([*command, "--set", f"steps={last}", "--json"], **environment)
    both = long_run(LocalStore(store), "r")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["resumed_step"], told["step"], told["attempts"]) == (last - 5, last, 2)
    assert told["newest_durable_age_s"] >= 0
    assert both is not None and both.wall_sec is not None
    assert sum(both.phases.values()) == pytest.approx(both.wall_sec, rel=0.005)
    assert both.num_steps == last
    assert both.phases["productive"] >= first.phases["productive"] - 1e-3


def num_saved(store: Path) -> int:
    """Saves of the attempt that goes on, counted by the newest that is durable."""
    found = Repository(LocalStore(store), "r").refresh().generations
    return found[-1].number if found else 0
