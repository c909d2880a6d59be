"""The commands on a device, as a user runs them: doctor, a sweep, and a long run whose worker is killed."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import Say
from tests.gpu.here import facts as device_facts
from tests.gpu.saves import difference
from tests.live.command_line import rows, run, running, sweep_command, write_spec
from tests.live.runs.test_train import a_worker_of, num_commits, status_of, train_command, wait_until

pytestmark = pytest.mark.gpu

DEADLINE_S = 240
WELL, WITH_WARNINGS = 0, 3
SWEEP = """
name: gpu
models: [llama-tiny]
axes:
  strategy: [ddp, fsdp, zero1, zero2, zero3]
  world_size: [1]
  seq_len: [128]
  micro_batch: [2]
  precision: [bf16]
measure: {steps: 10, warmup: 2}
repeats: 1
limits: {schedule_timeout_s: 60, cell_timeout_s: 120}
"""
RUN = """
name: r
model: llama-tiny
strategy: fsdp
world_size: 1
seq_len: 128
steps: 1000
attention: math
data: {samples: 64}
checkpoint: {every_steps: 20, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60}
recovery: {pause_s: 0.1}
guard: {spike_ratio: null}
"""


def test_doctor_finds_the_device(tmp_path: Path, seen: Say) -> None:
    command = [sys.executable, "-m", "jobs.cli", "doctor", "--store", str(tmp_path / "store"), "--json"]
    done = run(command, deadline_s=DEADLINE_S)
    assert done.returncode in (WELL, WITH_WARNINGS), done.stdout + done.stderr
    (answer,) = json.loads(done.stdout)["answers"]
    facts = answer["facts"]
    assert facts["device"] == device_facts().name
    fastest = {dtype: max(_rates(facts, dtype), default=0.0) / 1e12 for dtype in ("bf16", "fp32")}
    rates = ", ".join(f"{dtype} products {rate:.0f} TFLOP/s" for dtype, rate in fastest.items())
    copies = facts["copies"][0]["bytes_per_s"] / 1e9
    seen(f"{facts['device']}, {rates}, copies {copies:.1f} GB/s, telemetry {facts['telemetry']}")


def _rates(facts: dict[str, list[dict[str, float]]], dtype: str) -> list[float]:
    return [found["flops_per_s"] for found in facts["gemms"] if found["dtype"] == dtype]


def test_a_sweep_over_ray_measures_each_strategy(tmp_path: Path, seen: Say) -> None:
    store = tmp_path / "store"
    done = run(sweep_command(write_spec(tmp_path, SWEEP), store), deadline_s=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(store)
    assert {row["status"] for row in found} == {"ok"} and len(found) == 5
    assert {row["simulated"] for row in found} == {False}
    rates = ", ".join(f"{row['strategy']} {row['tokens_per_sec']:,.0f}" for row in found)
    seen(f"tokens/s: {rates}")


def test_a_run_over_ray_whose_worker_is_killed_ends_as_one_that_was_left_alone(
    tmp_path: Path, seen: Say
) -> None:
    spec, store, alone = write_spec(tmp_path, RUN), tmp_path / "store", tmp_path / "alone"
    left_alone = run(train_command(spec, alone, "--executor", "inline"), deadline_s=DEADLINE_S)
    assert left_alone.returncode == 0, left_alone.stdout + left_alone.stderr
    with running(train_command(spec, store)) as process:
        wait_until(lambda: num_commits(store) >= 1, DEADLINE_S)
        os.kill(a_worker_of(process).pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert status_of(store)["attempts"] == 2, "it was too late for that"
    seen(difference(alone, store))
