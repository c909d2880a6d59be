"""What a real training records, killed in the middle: each step once, lost ones marked, no time missing."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from checkpointing.repository import Repository
from checkpointing.store import LocalStore
from reporting.long_runs import long_runs, write_steps
from tests.live.commands import run, running, write_spec

RUN = """
name: r
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 48
data: {samples: 64}
eval: {every_steps: 24, samples: 4}
checkpoint: {every_steps: 16, on_busy: wait, retention: {epochs: false}}
record: {flush_s: 0.1}
"""
DEADLINE_S = 120


def train_command(spec: Path, store: Path, *flags: str) -> list[str]:
    command = [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store)]
    return [*command, "--executor", "inline", *flags]


def steps_in(store: Path) -> list[dict[str, Any]]:
    path = store.with_suffix(".parquet")
    write_steps(LocalStore(store), path)
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def newest_durable_step(store: Path) -> int:
    return max((found.step for found in Repository(LocalStore(store), "r").refresh().generations), default=0)


def looks() -> Iterator[None]:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        time.sleep(0.05)
        yield
    pytest.fail("it did not happen in time")


def test_a_killed_run_that_goes_on_counts_each_step_once_and_accounts_for_all_of_its_time(
    tmp_path: Path,
) -> None:
    store, spec = tmp_path / "store", write_spec(tmp_path, RUN)
    began_s = time.time()
    with running(train_command(spec, store)) as process:
        for _ in looks():
            process.send_signal(signal.SIGSTOP)
            recorded = max((row["step"] for row in steps_in(store)), default=0)
            if recorded > newest_durable_step(store) > 0:
                break
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=30)
    durable = newest_durable_step(store)
    last = run(train_command(spec, store))
    assert last.returncode == 0, last.stderr
    wall_s = time.time() - began_s

    rows = steps_in(store)
    counted = [row for row in rows if not row["superseded"]]
    assert [row["step"] for row in counted] == list(range(1, 49))
    assert [row["step"] for row in rows if row["superseded"]] == list(range(durable + 1, recorded + 1))
    assert {row["term"] for row in counted if row["step"] <= durable} == {1}
    assert [row["step"] for row in counted if row["val_loss"] is not None] == [24, 48]
    assert all(row["loss"] > 0 and row["step_s"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert [row["position"] for row in counted] == list(range(1, 49))

    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    assert found.wall_sec is not None and found.goodput is not None
    assert found.wall_sec < wall_s
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)
    assert {"productive", "recompute", "restore", "start", "detect", "eval", "save"} <= set(found.phases)
    assert 0 < found.goodput < 1
    kinds = [kind for _, kind, _ in found.incidents]
    assert kinds.count("failure") == 1
    assert kinds.index("start") < kinds.index("failure") < kinds.index("restore") < kinds.index("end")

    status = run([sys.executable, "-m", "jobs.cli", "status", "r", "--store", str(store), "--json"])
    told = json.loads(status.stdout)["recorded"]
    assert (told["num_steps"], told["num_superseded"]) == (48, recorded - durable)
    assert told["goodput"] == pytest.approx(found.goodput)
    assert told["incidents"][-1]["kind"] == "end"
