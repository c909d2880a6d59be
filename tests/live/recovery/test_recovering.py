"""A long run goes on by itself: workers and drivers that are killed or stopped, a bug, a restarted head."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import ROOT, below, run, running, write_spec
from tests.live.heads import ray_head
from tests.live.runs.test_train import a_worker_of, num_commits, train_command, wait_until

PARENT, GUARD, CONTROLLER = "jobs.launch.forkserver.server", "ray::ForkserverActor", "ray::TrainController"
# It only bounds: a machine with other work takes its time.
PATIENCE_S = 500
# Learnt by heart, the samples' loss is nearly 0, and its least change would be a spike.
RUN = """
name: r
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 40
data: {samples: 64}
checkpoint: {every_steps: 4, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60, hang_timeout_s: 15}
recovery: {pause_s: 0.1}
guard: {spike_ratio: null}
"""
# Breaks the training at one step, whichever process and attempt gets there.
BUG = """
import sys
import torch
from jobs.training.loop import attempt as long_run

step_as_it_is, NUM_GOOD = long_run.train_step, 7

def step(engine, *batches_and_weight):
    if engine.counters().num_updates >= NUM_GOOD:
        {bug}
    return step_as_it_is(engine, *batches_and_weight)

long_run.train_step = step
from jobs.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def keep_command(spec: Path, store: Path, *flags: str) -> list[str]:
    return [*train_command(spec, store, *flags), "--keep"]


def finished_as_if_left_alone(tmp_path: Path, spec: Path, store: Path, *flags: str) -> bool:
    alone = run(train_command(spec, tmp_path / "alone", *flags), deadline_s=PATIENCE_S)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    view = Repository(LocalStore(store), "r").refresh()
    ours, theirs = newest_manifest(store, "r"), newest_manifest(tmp_path / "alone", "r")
    return view.finished_step == theirs.cut.step and digests_of(ours) == digests_of(theirs)


def test_a_driver_that_is_killed_under_its_supervisor_is_started_again_and_the_run_is_the_same(
    tmp_path: Path,
) -> None:
    spec, store = write_spec(tmp_path, RUN.replace("steps: 40", "steps: 120")), tmp_path / "store"
    with running(keep_command(spec, store, "--executor", "inline")) as supervisor:
        wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
        (driver,) = psutil.Process(supervisor.pid).children()
        os.kill(driver.pid, signal.SIGKILL)
        output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 0, output
    assert "r: the driver was ended by SIGKILL; starting it again in 0 s" in output
    assert Repository(LocalStore(store), "r").refresh().term == 2
    assert finished_as_if_left_alone(tmp_path, spec, store, "--executor", "inline")


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ('raise ValueError("a bug")', "the same error at step 7 twice: rank 0: ValueError: a bug"),
        ("torch.empty(1 << 60, dtype=torch.uint8)", "out of memory at step 7 twice: rank 0: "),
    ],
)
def test_a_bug_ends_a_run_within_three_attempts_with_the_cause_on_the_last_line(
    bug: str, said: str, tmp_path: Path
) -> None:
    spec, store, script = write_spec(tmp_path, RUN), tmp_path / "store", tmp_path / "buggy.py"
    script.write_text(BUG.format(bug=bug))
    command = train_command(spec, store, "--executor", "inline")
    done = run([sys.executable, str(script), *command[3:]], PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"longhaul train: given up, {said}")
    assert Repository(LocalStore(store), "r").refresh().term == 2


@pytest.mark.soak
def test_a_supervisor_that_is_asked_to_stop_hands_it_on_and_ends_well(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN), tmp_path / "store"
    command = keep_command(spec, store, "--executor", "inline", "--set", "steps=100000")
    with running(command) as supervisor:
        wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
        supervisor.send_signal(signal.SIGTERM)
        output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 0, output
    assert "stopped at step" in output
    assert Repository(LocalStore(store), "r").refresh().stopped_step is not None


@pytest.mark.soak
@pytest.mark.parametrize("title", [PARENT, GUARD])
@pytest.mark.parametrize("what_happens", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_stopped_is_a_hang_that_names_it_and_the_run_goes_on(
    title: str, what_happens: signal.Signals, tmp_path: Path
) -> None:
    # So long that it is worth to prepare for another attempt, however fast the machine is.
    longer = RUN.replace("steps: 40", "steps: 4000").replace("world_size: 1", "world_size: 2")
    spec, store = write_spec(tmp_path, longer), tmp_path / "store"
    attempt = 1 if title == PARENT else 2
    with running(train_command(spec, store)) as process:
        parent = await_one(process, PARENT)
        wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
        if title == GUARD:
            # Nodes have forkservers of their own once the driver's is gone.
            parent.kill()
            os.kill(a_worker_of(process).pid, signal.SIGKILL)
            await_one(process, GUARD)
        # Nor does it matter that who is to fork the next attempt's workers does not answer by then. First, as
        # the kernel lets go on what is stopped when its parent ends.
        os.kill(await_one(process, title).pid, what_happens)
        os.kill(a_worker_of(process).pid, signal.SIGSTOP)
        assert num_attempts(store) == attempt, "it was too late for that"
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert "is silent for 15 s" in output
    assert note_of(store, attempt)["ending"]["cause"] == "hang"
    assert finished_as_if_left_alone(tmp_path, spec, store)


@pytest.mark.soak
def test_a_rank_that_stands_still_tells_where_its_threads_are(tmp_path: Path) -> None:
    """A debugger's breakpoint, a lock, a lost packet: its process answers, but its steps don't come."""
    # Its limit is five times its longest step where that is more, as it may be on a slow machine.
    two = RUN.replace("world_size: 1", "world_size: 2").replace("hang_timeout_s: 15", "hang_timeout_s: 25")
    spec = write_spec(tmp_path, two + STUCK.format(folder=tmp_path))
    store = tmp_path / "store"
    (tmp_path / "sitecustomize.py").write_text(STANDS_STILL.format(folder=tmp_path))
    done = run(train_command(spec, store))
    assert done.returncode == 0, done.stdout + done.stderr
    note = note_of(store, 1)
    assert note["ending"]["cause"] == "hang"
    assert "no step for 25 s" in note["ending"]["reason"]
    assert any("sitecustomize.py" in line and "stand_still" in line for line in note["log_tail"]), note


# By default `test_train` sees whose child a worker is, and `test_forkserver` what variables it has.
@pytest.mark.soak
def test_all_workers_are_forked_and_have_their_variables(tmp_path: Path) -> None:
    endless = RUN.replace("steps: 40", "steps: 100000").replace("world_size: 1", "world_size: 2")
    spec, store = write_spec(tmp_path, endless + STUCK.format(folder=tmp_path)), tmp_path / "store"
    (tmp_path / "sitecustomize.py").write_text(STANDS_STILL.format(folder=tmp_path))
    (tmp_path / "stood-still").touch()
    with running(train_command(spec, store)) as process:
        wait_until(lambda: len(threads_told(tmp_path)) == 2, PATIENCE_S)
        parent = await_one(process, PARENT)
        before = set(threads_told(tmp_path))
        assert {psutil.Process(pid).ppid() for pid in before} == {parent.pid}
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: len(threads_told(tmp_path)) == 4, PATIENCE_S)
        after = threads_told(tmp_path).keys() - before
        assert {psutil.Process(pid).ppid() for pid in after} == {parent.pid}
        assert await_one(process, CONTROLLER).ppid() == parent.pid
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    num_threads = os.environ.get("OMP_NUM_THREADS", "1")
    assert set(threads_told(tmp_path).values()) == {f"{num_threads} {num_threads}\n"}


def threads_told(folder: Path) -> dict[int, str]:
    """By process that has begun a step."""
    files = {path: path.read_text() for path in folder.glob("threads-*")}
    return {int(path.name.removeprefix("threads-")): text for path, text in files.items() if text}


def await_one(process: "subprocess.Popen[str]", words: str) -> psutil.Process:
    wait_until(lambda: process.poll() is not None or len(below(process.pid, words)) == 1, PATIENCE_S)
    assert process.poll() is None, process.communicate()[0]
    (found,) = below(process.pid, words)
    return found


def num_attempts(store: Path) -> int:
    return Repository(LocalStore(store), "r").refresh().term


STUCK = "environment: {{PYTHONPATH: {folder}}}\n"
STANDS_STILL = """
import importlib.abc, importlib.util, os, sys, time

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "jobs.training.step":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        run = found.loader.exec_module

        def exec_module(module):
            run(module)
            as_it_is = module.train_step

            def stand_still(engine, *batches_and_weight):
                mine = f"{folder}/threads-{{os.getpid()}}"
                if not os.path.exists(mine):  # Once, so that who reads it never finds it emptied.
                    with open(mine, "w") as told:
                        print(os.environ.get("OMP_NUM_THREADS"), module.torch.get_num_threads(), file=told)
                if engine.counters().num_updates == 9:
                    try:
                        os.close(os.open("{folder}/stood-still", os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        time.sleep(600)
                return as_it_is(engine, *batches_and_weight)

            module.train_step = stand_still

        found.loader.exec_module = exec_module
        return found

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.soak
def test_a_run_whose_board_dies_goes_on(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN.replace("steps: 40", "steps: 400")), tmp_path / "store"
    with running(train_command(spec, store)) as process:
        wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
        (board,) = below(process.pid, "ray::Board")
        os.kill(board.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert note_of(store, 1)["ending"]["cause"] == "cluster away"
    assert finished_as_if_left_alone(tmp_path, spec, store)


@pytest.mark.soak
def test_a_run_whose_job_or_head_dies_is_submitted_again_by_its_supervisor(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN.replace("steps: 40", "steps: 400")), tmp_path / "store"
    with ExitStack() as stack:
        with ray_head("--num-cpus=2") as head:
            command = keep_command(spec, store, "--address", head.dashboard)
            supervisor = stack.enter_context(running(command, RAY_AUTH_MODE="disabled"))
            wait_until(lambda: num_commits(store) >= 1, PATIENCE_S)
            (job,) = below(os.getpid(), "JobSupervisor")
            job.kill()
            wait_until(lambda: num_attempts(store) == 2, PATIENCE_S)
            durable = newest_manifest(store, "r").cut.step
            wait_until(lambda: newest_manifest(store, "r").cut.step > durable, PATIENCE_S)
        with ray_head("--num-cpus=2", dashboard_port=int(head.dashboard.rpartition(":")[2])):
            output, _ = supervisor.communicate(timeout=PATIENCE_S)
    assert supervisor.returncode == 0, output
    assert "the cluster has forgotten job" in output
    view = Repository(LocalStore(store), "r").refresh()
    assert (view.term, view.finished_step) == (3, 400)


def note_of(store: Path, term: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store / f"runs/r/attempts/{term:012d}.json").read_text())
    return found
