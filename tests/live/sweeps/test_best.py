"""``micro_batch: max`` and ``--best`` as a user runs them, also where they are killed or cut short."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.live.command_line import DEADLINE_S, rows, run, running, sweep_command, write_spec
from tests.live.workers.test_inline import torchrun

CHOICE = """
name: choice
models: [llama-tiny]
axes: {strategy: [ddp, fsdp], seq_len: [32], micro_batch: [1, max]}
global_batch: 4
measure: {steps: 6, warmup: 1}
repeats: 2
"""
TIGHT = """
name: tight
models: [llama-tiny]
axes: {strategy: ddp, world_size: 2, seq_len: 64, micro_batch: max}
global_batch: 128
measure: {steps: 1, warmup: 1}
repeats: 2
limits: {memory_gb_per_worker: 0.15, try_anyway: true}
"""


def test_a_search_for_the_best_that_is_killed_goes_on_and_says_what_is_best(tmp_path: Path) -> None:
    _kill_and_finish(tmp_path, num_kills=1, executor="inline")


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["inline", "ray"])
def test_a_search_for_the_best_killed_ten_times_repeats_nothing(tmp_path: Path, executor: str) -> None:
    _kill_and_finish(tmp_path, num_kills=10, executor=executor)


@pytest.mark.soak
def test_a_search_under_torchrun_goes_on_at_the_next_start_with_what_ran_out(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [*torchrun(2), *sweep_command(write_spec(tmp_path, TIGHT), store)[1:]]
    first = run(command)
    assert first.returncode == 1, first.stdout + first.stderr
    (row,) = rows(store)
    assert (row["status"], row["batch_search"]["is_over"]) == ("oom", False)
    starts = 1
    while run(command).returncode != 0:
        starts += 1
        assert starts < 6, rows(store)
    sizes = {(row["status"], row["per_device_batch"], row["grad_accum"]) for row in rows(store)}
    assert len(sizes) == 1, sizes
    assert row["batch_search"]["failed"][0] in rows(store)[0]["batch_search"]["failed"]


def _kill_and_finish(tmp_path: Path, *, num_kills: int, executor: str) -> None:
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 10_000))
    print(f"LONGHAUL_SEED={seed}")
    dice = random.Random(seed)
    store = tmp_path / "store"
    flags = ("--best", "--json", "--executor", executor)
    command = sweep_command(write_spec(tmp_path, CHOICE), store, *flags)
    kept: dict[Path, bytes] = {}
    for _ in range(num_kills):
        with running(command) as process:
            time.sleep(dice.uniform(3, 12))
            os.kill(process.pid, signal.SIGKILL)
        kept |= {path: path.read_bytes() for path in store.rglob("result.json") if path not in kept}

    done = run(command, deadline_s=DEADLINE_S + 20 * num_kills)

    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    told = json.loads(done.stdout)
    assert told == json.loads((store / "sweeps" / "choice" / "best.json").read_text())
    (question,) = told["questions"]
    assert question["is_decided"]
    assert question["num_candidates"] == 4
    assert {path: path.read_bytes() for path in kept} == kept, f"seed {seed}: a finished run was repeated"
    by_id = {row["run_id"]: row for row in rows(store)}
    assert {by_id[run_id]["rung"] for run_id in question["best"]["run_ids"]} == {None}
    largest = [row for row in by_id.values() if row["batch_search"]]
    assert {row["per_device_batch"] for row in largest} == {4}
    assert sum(row["batch_search"]["num_trials"] > 0 for row in largest) == 2, "one search per strategy"
