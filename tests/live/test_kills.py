"""``kill -9`` of what makes up a run at random moments, again and again: it is the one left alone."""

import os
import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from checkpointing.history import Load, Quarantine
from checkpointing.repository import Repository
from checkpointing.store import LocalStore
from reporting.long_runs import long_runs
from tests.live.attempts import Wanted, attempt, digests_of, newest_manifest, samples_read
from tests.live.commands import below, run, running, write_spec
from tests.live.ranks import FORKS
from tests.live.test_train import train_command, wait_until
from tests.live.trainings import recipe_for

KILLS_IN_CI = 10
KILLS_IN_SOAK = 300
DEADLINE_S = 120.0
# By the log, so that a slow machine gets on as well: before it grew at all, or after a few saves.
KILL_AFTER_RECORDS = (0, 9)
KILL_AFTER_S = (0.0, 1.0)

KILLS_OVER_RAY = 100
EVERY_STEPS = 5
NUM_STEPS_OVER_RAY = 100 * KILLS_OVER_RAY
# By the last of them there is what the next attempt's workers are forked from.
KILL_OVER_RAY_AFTER_S = (0.0, 0.5, 1.0, 10.0)
OVER_RAY = f"""
name: r
model: llama-tiny
world_size: 2
seq_len: 32
steps: {NUM_STEPS_OVER_RAY}
data: {{samples: 1000}}
optimizer: {{warmup_steps: 5}}
checkpoint: {{every_steps: {EVERY_STEPS}, on_busy: wait, retention: {{last: 3, epochs: false}}}}
record: {{flush_s: 2, tensorboard: false}}
"""
# What Ray or we call a process, and how often it is chosen.
TITLES = {
    "a worker": ("RayTrainWorker", 6),
    "the controller": ("TrainController", 2),
    "a parent of spares": ("jobs.launch.parent", 1),
    "the driver": ("jobs.cli train", 1),
}


def test_a_run_that_is_killed_at_random_moments_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    _kill_until_done(tmp_path, KILLS_IN_CI)


@pytest.mark.soak
def test_a_run_that_is_killed_hundreds_of_times_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    _kill_until_done(tmp_path, KILLS_IN_SOAK)


@pytest.mark.soak
def test_a_kept_run_over_ray_whose_processes_are_killed_a_hundred_times_is_the_run_that_was_left_alone(
    tmp_path: Path,
) -> None:
    seed = _seed()
    dice, killed = random.Random(seed), Counter[str]()
    spec = write_spec(tmp_path, OVER_RAY)
    store, told = tmp_path / "killed", tmp_path / "told.txt"
    with (
        told.open("w") as output,
        running(train_command(spec, store, "--keep"), output=output) as process,
    ):
        while killed.total() < KILLS_OVER_RAY:
            _wait_for_generations(process, store, dice.randint(0, 3))
            time.sleep(dice.choice(KILL_OVER_RAY_AFTER_S))
            (who,) = dice.choices(list(TITLES), weights=[weight for _, weight in TITLES.values()])
            victims = below(process.pid, TITLES[who][0])
            # None where that one is only being started.
            for victim in dice.sample(victims, k=min(len(victims), dice.randint(1, 2))):
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    killed[who] += 1
        process.wait(DEADLINE_S + 5 * KILLS_OVER_RAY)
    assert process.returncode == 0, f"seed {seed}: {told.read_text()[-3000:]}"
    alone = run(train_command(spec, tmp_path / "alone"), deadline_s=DEADLINE_S + 5 * KILLS_OVER_RAY)
    assert alone.returncode == 0, alone.stderr
    ours, theirs = (newest_manifest(folder, "r") for folder in (store, tmp_path / "alone"))
    assert ours.cut.state["position"] == theirs.cut.state["position"]
    assert digests_of(ours) == digests_of(theirs), f"seed {seed}"
    _assert_the_time_adds_up(store, num_steps=NUM_STEPS_OVER_RAY)
    num_attempts = Repository(LocalStore(store), "r").refresh().term
    # Two may be killed within one attempt.
    assert num_attempts > killed.total() / 3
    print(f"{dict(killed)} killed, {num_attempts} attempts, bit-equal at the end")


def _wait_for_generations(process: "subprocess.Popen[str]", store: Path, num_new: int) -> None:
    """One more each time: without that, nothing would count as getting on."""
    before = _newest(store)
    wait_until(lambda: process.poll() is not None or _newest(store) >= before + EVERY_STEPS * num_new, 300)
    assert process.poll() is None, "it ended before all was killed that was to be"


def _newest(store: Path) -> int:
    return max((one.step for one in Repository(LocalStore(store), "r").refresh().generations), default=0)


def _seed() -> int:
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 10_000))
    print(f"\nLONGHAUL_SEED={seed}")
    return seed


def _kill_until_done(tmp_path: Path, num_kills: int) -> None:
    seed = _seed()
    dice = random.Random(seed)
    wanted = Wanted(
        name="r",
        recipe=recipe_for("zero2", world_size=2),
        num_steps=20 * num_kills,
        store=tmp_path / "killed",
        disk=tmp_path / "disk",
        every_steps=3,
        store_every=2,
        diary=tmp_path / "diary",
    )
    for _ in range(num_kills):
        ranks = _start(wanted, tmp_path)
        _wait_for_records(ranks, wanted.store, dice.randint(*KILL_AFTER_RECORDS))
        _wait(ranks, dice.uniform(*KILL_AFTER_S))
        for rank in dice.sample(ranks, k=2):
            rank.kill()
            rank.join()
    last = _start(wanted, tmp_path)
    _wait(last, DEADLINE_S + 5 * num_kills)
    codes = [rank.exitcode for rank in last]
    for rank in last:
        rank.kill()
        rank.join()
    assert codes == [0, 0], f"seed {seed}"

    alone = Wanted(
        name="r",
        recipe=wanted.recipe,
        num_steps=wanted.num_steps,
        store=tmp_path / "alone",
        every_steps=50,
        diary=tmp_path / "diary-alone",
    )
    ranks = _start(alone, tmp_path)
    _wait(ranks, DEADLINE_S + 5 * num_kills)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    ours, theirs = (newest_manifest(folder, "r") for folder in (wanted.store, alone.store))
    assert ours.cut.state["position"] == theirs.cut.state["position"]
    assert digests_of(ours) == digests_of(theirs), f"seed {seed}"
    _assert_every_sample_once(wanted, alone)
    _assert_the_time_adds_up(wanted.store, num_steps=wanted.num_steps)
    repository = Repository(LocalStore(wanted.store), "r")
    kept = [found.name for found in repository.refresh().generations]
    assert repository.foreign() == sorted(kept), f"seed {seed}: what killed saves left is still there"
    entries = [record.entry for record in repository.records()]
    num_loads = sum(isinstance(entry, Load) for entry in entries)
    num_passed = sum(isinstance(entry, Quarantine) for entry in entries)
    assert num_loads > num_kills / 4
    print(f"{num_kills} kills, {num_loads} loads, {num_passed} generations passed over, bit-equal at the end")


def _assert_every_sample_once(wanted: Wanted, alone: Wanted) -> None:
    """Each rank has read, step by step, the samples that it reads where nothing happens."""
    per_step = wanted.recipe.grad_accum
    ours, theirs = (
        samples_read(one.diary, wanted.recipe.world_size, per_step) for one in (wanted, alone) if one.diary
    )
    assert {len(of_rank) for of_rank in theirs} == {wanted.num_steps * per_step}
    assert ours == theirs


def _assert_the_time_adds_up(store: Path, *, num_steps: int) -> None:
    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    assert found.steps[-1] == num_steps
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)


def _start(wanted: Wanted, tmp_path: Path) -> list[BaseProcess]:
    meeting = tmp_path / f"rendezvous-{time.monotonic_ns()}"
    ranks: list[BaseProcess] = [
        FORKS.Process(target=_be_a_rank, args=(wanted, rank, meeting), daemon=True) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def _wait(ranks: list[BaseProcess], at_most_s: float) -> None:
    deadline = time.monotonic() + at_most_s
    for rank in ranks:
        rank.join(max(0.0, deadline - time.monotonic()))


def _wait_for_records(ranks: list[BaseProcess], store: Path, num_new: int) -> None:
    before = _num_records(store)
    deadline = time.monotonic() + DEADLINE_S
    while _num_records(store) < before + num_new and time.monotonic() < deadline:
        _wait(ranks[:1], 0.02)
        if not any(rank.is_alive() for rank in ranks):
            return


def _num_records(store: Path) -> int:
    return len(list((store / "runs/r/log").glob("*.json")))


def _be_a_rank(wanted: Wanted, rank: int, meeting: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    attempt(wanted)
    os._exit(0)
