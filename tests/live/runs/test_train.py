"""``longhaul train`` as a user runs it: under Ray, killed and started again, submitted, and asked about."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from reporting.long_runs.summarising import long_runs
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import DEADLINE_S, below, run, running, write_spec
from tests.live.heads import ray_head
from tests.live.servers import BUCKET, HOST, S3_KEYS, make_bucket, moto
from tests.proxy import LooksThenWrites, Proxy
from tests.unit.printed import checked

RUN = """
name: r
model: llama-tiny
strategy: zero2
world_size: 2
seq_len: 32
steps: 60
data: {samples: 64}
optimizer: {warmup_steps: 5}
checkpoint: {every_steps: 5, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60}
"""
# Ranks of ddp need not load DeepSpeed.
LIGHT = RUN.replace("strategy: zero2", "strategy: ddp").replace("steps: 60", "steps: 6")


def train_command(spec: Path, store: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store), *flags]


def num_commits(store: Path) -> int:
    return len(Repository(LocalStore(store), "r").refresh().generations)


# Ranks of zero2 load DeepSpeed first, in each of three drivers; `test_kills` kills them without a driver.
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero2", marks=pytest.mark.soak)])
def test_a_run_whose_worker_was_killed_goes_on_by_itself_and_is_the_run_that_was_left_alone(
    strategy: str, tmp_path: Path
) -> None:
    # So many that it is still at work when it is to be killed.
    spec = write_spec(tmp_path, RUN.replace("zero2", strategy).replace("steps: 60", "steps: 120"))
    alone = run(train_command(spec, tmp_path / "alone", "--json"))
    assert alone.returncode == 0, alone.stderr
    facts = checked("train", alone.stdout)
    assert facts["finished"] is True
    assert facts["ray_checkpoint"] == facts["newest_generation"]

    store = tmp_path / "killed"
    command = train_command(spec, store)
    with running(command) as process:
        wait_until(lambda: num_commits(store) >= 1)
        worker = a_worker_of(process)
        assert "jobs.launch.forkserver.server" in psutil.Process(worker.ppid()).cmdline()
        os.kill(worker.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    said = r"r: attempt 1 failed: rank \d: its worker process has died.*; trying again in 0 s from step \d+"
    assert re.search(said, output), output
    status = status_of(store)
    assert (status["attempts"], status["step"], status["finished"]) == (2, 120, True)
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(tmp_path / "alone", "r"))

    again = run(command)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    (killed_worker,) = failures_of(store)
    # The cadence, and as many while the save before is on its way, which the next one waits for.
    assert num_redone(store) <= 2 * 5
    assert re.search(r"attempt 1, .*rank \d: its worker process has died", killed_worker)


def num_redone(store: Path) -> int:
    """Steps, after the only restart."""
    (found,), _ = long_runs(LocalStore(store))
    (restart,) = found.recoveries
    return restart.num_redone


def failures_of(store: Path) -> list[str]:
    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    # Of what was killed no more is missing than was not flushed yet.
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)
    return [text for _, kind, text in found.incidents if kind == "failure"]


# By default a submitted run is stopped, which saves (`test_stopping`), and a submitted sweep ends by itself.
@pytest.mark.soak
def test_a_submitted_run_leaves_its_checkpoints_and_status_tells_of_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    spec = write_spec(tmp_path, RUN.replace("steps: 60", "steps: 6"))
    with ray_head("--num-cpus=2", LONGHAUL_HOME=str(home)) as head:
        submit = [head.ray, "job", "submit", f"--address={head.dashboard}", "--working-dir=."]
        done = run(
            [*submit, "--", "python", "jobs/train.py", str(spec)],
            deadline_s=DEADLINE_S,
            RAY_AUTH_MODE="disabled",
        )
    assert done.returncode == 0, done.stdout + done.stderr
    status = status_of(home / "results")
    assert (status["step"], status["finished"]) == (6, True)
    assert status["newest_generation"]
    assert status["newest_durable_age_s"] >= 0


def test_on_object_storage_it_is_saved_gone_on_from_and_pointed_at(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LIGHT)
    with moto(tmp_path) as port:
        endpoint = f"http://{HOST}:{port}"
        make_bucket(endpoint, S3_KEYS)
        keys = {**S3_KEYS, "AWS_ENDPOINT_URL": endpoint}
        command = [*train_command(spec, tmp_path), "--json", "--store", f"s3://{BUCKET}/store"]
        first = run(command, **keys)
        more = run([*command, "--set", "steps=8"], **keys)
    assert (first.returncode, more.returncode) == (0, 0), first.stderr + more.stderr
    for done in (first, more):
        facts = json.loads(done.stdout)
        assert facts["ray_checkpoint"] == facts["newest_generation"]
    assert facts["resumed_step"] == 6


def test_where_two_win_who_create_one_object_at_once_no_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, LIGHT.replace("world_size: 2", "world_size: 1"))
    url = f"s3://{BUCKET}/store"
    with moto(tmp_path) as port, Proxy(port) as front:
        make_bucket(front.url, S3_KEYS)
        for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": front.url}.items():
            monkeypatch.setenv(name, value)
        front.become(LooksThenWrites())
        command = [*train_command(spec, tmp_path, "--executor", "inline"), "--store", url]
        done = run(command)
        # The first rank of another machine, to which nobody comes.
        others = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        for name, value in {**others, "MASTER_ADDR": HOST, "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        beside = run([*command, "--set", "world_size=2"])
        left = [*open_store(url).contents()]
    assert done.returncode == 2, done.stderr
    assert f"store: {url} does not let only one of several create an object at the same moment" in done.stderr
    assert beside.returncode == 2, beside.stderr
    assert left == []


def test_under_torchrun_it_is_the_same_run(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, LIGHT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, "-m", "jobs.cli", "train", str(spec), "--store", str(tmp_path / "store")]
    first = run(command)
    assert first.returncode == 0, first.stdout + first.stderr
    more = run([*command, "--set", "steps=8"])
    assert more.returncode == 0, more.stdout + more.stderr
    assert "goes on after step 6" in more.stdout
    done = run([*command, "--set", "steps=8"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing to do" in done.stdout
    (found,), _ = long_runs(LocalStore(tmp_path / "store"))
    assert found.steps == tuple(range(1, 9))
    assert None not in found.losses
    of_all_ranks = newest_manifest(tmp_path / "store", "r").cut.metrics["loss"]
    assert found.losses[-1] == pytest.approx(of_all_ranks, abs=1e-8)


def test_a_zombie_that_wakes_up_after_a_takeover_changes_nothing_and_ends(tmp_path: Path) -> None:
    store = tmp_path / "store"
    spec = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1"))
    command = train_command(spec, store, "--executor", "inline", "--set", "checkpoint.every_steps=2")
    with running([*command, "--set", "steps=100000"]) as zombie:
        wait_until(lambda: num_commits(store) >= 2)
        zombie.send_signal(signal.SIGSTOP)
        step = Repository(LocalStore(store), "r").refresh().generations[-1].step
        heir = run([*command, "--set", f"steps={step + 6}"])
        assert heir.returncode == 0, heir.stderr
        before = Repository(LocalStore(store), "r").refresh()
        zombie.send_signal(signal.SIGCONT)
        output, _ = zombie.communicate(timeout=120)
    assert zombie.returncode == 1, output
    assert "a later attempt has taken r over; this one ends itself" in output
    assert Repository(LocalStore(store), "r").refresh() == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--resume", "epoch:7"), "'epoch:7' is none of its generations"),
        (("--resume", "results/runs/nobody"), "there is no run 'nobody'"),
        (("--resume", "backup", "--fresh"), "--resume backup and --fresh exclude each other"),
        (("--run", "../escape"), "--run: '../escape' is not a name"),
        (("--set", "checkpoint.every_stps=3"), "every_steps"),
        (("--set", "group=red"), "has no group 'red'"),
        (
            ("--set", "world_size=3", "--executor", "inline"),
            "world_size: 3, but this start is of world size 1",
        ),
    ],
)
def test_bad_input_ends_with_2_and_says_what_to_do(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1"))
    done = run([*train_command(spec, tmp_path / "store"), *flags])
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def status_of(store: Path) -> dict[str, Any]:
    done = run([sys.executable, "-m", "jobs.cli", "status", "r", "--store", str(store), "--json"])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = checked("status", done.stdout)
    return found


def a_worker_of(process: "subprocess.Popen[str]") -> psutil.Process:
    return below(process.pid, "RayTrainWorker")[0]


def wait_until(is_so: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
