"""What is known of a run while it goes on and afterwards: alarms, where its time went, what restarts cost."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpointing.stores.local import LocalStore
from reporting.long_runs.summarising import long_runs
from reporting.long_runs.summary import LongRun
from tests.live.command_line import DEADLINE_S, run, running, write_spec
from tests.live.forked_command import run_forked
from tests.live.runs.test_train import a_worker_of, num_commits, train_command, wait_until

RUN = """
name: r
model: llama-tiny
world_size: 1
seq_len: 32
steps: 60
data: {samples: 64}
checkpoint: {every_steps: 4, on_busy: wait}
record: {flush_s: 1}
limits: {schedule_timeout_s: 60}
"""
DIVERGES = """
optimizer: {lr: 1.0e+30, warmup_steps: 0}
recovery: {step_backs: 0}
alarms: {command: [%s, -c, 'import sys; print(sys.stdin.read(), file=open(sys.argv[1], "a"))', %s]}
"""


def status_of(store: Path) -> dict[str, Any]:
    asked = run([sys.executable, "-m", "jobs.cli", "status", "r", "--store", str(store), "--json"])
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def recorded(store: Path) -> LongRun:
    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    assert found.wall_sec is not None
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)
    return found


def test_a_loss_that_goes_wrong_rings_the_users_command_and_status_tells_that_it_was_given_up(
    tmp_path: Path,
) -> None:
    store, told = tmp_path / "store", tmp_path / "told.jsonl"
    settings = DIVERGES % (sys.executable, told)
    spec = write_spec(tmp_path, RUN + settings)
    done = run_forked(train_command(spec, store, "--executor", "inline"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "r: alarm: loss not finite: " in done.stdout
    alarms = [json.loads(line) for line in told.read_text().splitlines()]
    rung = [(alarm["run"], alarm["attempt"], alarm["kind"]) for alarm in alarms]
    assert rung == [("r", 1, "loss not finite"), ("r", 1, "given up")]
    found = status_of(store)
    assert found["stage"] == "given up"
    kinds = [kind for _, kind, _ in recorded(store).incidents]
    assert {"alarm", "failure", "give up"} <= set(kinds)


@pytest.mark.soak
def test_a_killed_worker_costs_what_the_line_the_status_and_the_report_say(tmp_path: Path) -> None:
    store = tmp_path / "store"
    spec = write_spec(tmp_path, RUN.replace("world_size: 1", "world_size: 2").replace("60", "400"))
    with running(train_command(spec, store)) as process:
        wait_until(lambda: num_commits(store) >= 2)
        os.kill(a_worker_of(process).pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert "r: attempt 2 comes in 0:00:00: rank" in output
    assert "  attempt 2" in output
    run_told = recorded(store)
    (restart,) = run_told.recoveries
    assert {"detect", "wait", "schedule", "start", "restore"} <= set(restart.phases)
    assert restart.cause == "failure"
    assert restart.device_s == pytest.approx(2 * restart.seconds)
    # What rank 0 did after its last record is done again too.
    assert restart.num_redone >= run_told.num_superseded
    found = status_of(store)
    assert (found["stage"], found["recorded"]["num_restarts"]) == ("finished", 1)
    assert found["recorded"]["restarts"][0]["phases_s"] == pytest.approx(dict(restart.phases))
