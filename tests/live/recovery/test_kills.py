"""``kill -9`` of what makes up a run at random moments, again and again: it is the one left alone."""

import os
import random
import shutil
import time
from collections import Counter
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Load, Quarantine
from checkpointing.stores.local import LocalStore
from jobs.training.task.task import Mixture
from reporting.long_runs.summarising import long_runs
from tests.live.attempts import Wanted, attempt, digests_of, newest_manifest, samples_read
from tests.live.ranks import FORKS
from tests.live.recovery.phases import marking_phases, phases_of, table
from tests.live.tokens.test_mixed_samples import mixture_of
from tests.live.trainings import recipe_for

KILLS_IN_CI = 4
KILLS_IN_SOAK = 300
KILLS_WITH_MEMORY = 500
KILLS_OF_A_MIXTURE = 40
# Behind a kill: what of the nodes' memory is lost with it. Most often nothing.
LOST_NODES = ((), (), (), (0,), (1,), (0, 1))
DEADLINE_S = 120.0
# By the log, so that a slow machine gets on as well: before it grew at all, or after a few saves.
KILL_AFTER_RECORDS = (0, 9)
# A lease, a commit, and that it is verified.
RECORDS_OF_A_SAVE = 3
KILL_AFTER_S = (0.0, 1.0)


def test_a_run_that_is_killed_at_random_moments_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    _kill_until_done(tmp_path, KILLS_IN_CI, Retention())


@pytest.mark.soak
@pytest.mark.longest
def test_a_run_whose_nodes_are_lost_while_it_copies_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    """Saves are copied while the next step runs, each step stays in the memory of both nodes, and a kill may
    take that of one or of both with it.
    """
    memory = tmp_path / "memory"
    _kill_until_done(tmp_path, KILLS_WITH_MEMORY, Retention(epochs=False), memory=memory)
    assert [path for path in memory.rglob("*") if path.is_file()] == [], "memory is given back at the end"


@pytest.mark.soak
@pytest.mark.longest
def test_a_run_that_is_killed_hundreds_of_times_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    # Of a thousand epochs each would leave 10 MB.
    _kill_until_done(tmp_path, KILLS_IN_SOAK, Retention(epochs=False))


@pytest.mark.soak
def test_a_run_on_a_mixture_that_is_killed_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    # With attention within documents.
    mixture = mixture_of({"web": 5, "code": 3, "books": 1}, tmp_path / "tokens", end_id=7)
    _kill_until_done(tmp_path, KILLS_OF_A_MIXTURE, Retention(epochs=False), mixture)


def seed_of_this_time() -> int:
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 10_000))
    print(f"\nLONGHAUL_SEED={seed}")
    return seed


def _kill_until_done(
    tmp_path: Path,
    num_kills: int,
    retention: Retention,
    mixture: Mixture | None = None,
    memory: Path | None = None,
) -> None:
    seed = seed_of_this_time()
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
        retention=retention,
        mixture=mixture,
        memory=memory,
        copies_lazily=memory is not None,
    )
    phases = Counter[str]()
    for number in range(num_kills):
        ranks = _start(wanted, tmp_path)
        num_new = dice.randint(*KILL_AFTER_RECORDS)
        # Once at least there is something to go on from, however the dice fall.
        _wait_for_records(ranks, wanted.store, num_new if number else max(num_new, RECORDS_OF_A_SAVE))
        _wait(ranks, dice.uniform(*KILL_AFTER_S))
        for rank in dice.sample(ranks, k=2):
            rank.kill()
            rank.join()
        for rank_number in range(2):
            phases.update(phases_of(tmp_path / f"phases-{rank_number}"))
        if memory:
            for node in dice.choice(LOST_NODES):
                shutil.rmtree(memory / f"node-{node}", ignore_errors=True)
    print(table(phases, 2 * num_kills))
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
        retention=retention,
        mixture=mixture,
    )
    ranks = _start(alone, tmp_path)
    _wait(ranks, DEADLINE_S + 5 * num_kills)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    ours, theirs = (newest_manifest(folder, "r") for folder in (wanted.store, alone.store))
    assert ours.cut.state["position"] == theirs.cut.state["position"]
    assert digests_of(ours) == digests_of(theirs), f"seed {seed}"
    _assert_every_sample_once(wanted, alone)
    assert_the_time_adds_up(wanted.store, num_steps=wanted.num_steps)
    repository = Repository(LocalStore(wanted.store), "r")
    kept = [found.name for found in repository.refresh().generations]
    assert repository.stored_generations() == sorted(kept), (
        f"seed {seed}: what killed saves left is still there"
    )
    entries = [record.entry for record in repository.records()]
    num_loads = sum(isinstance(entry, Load) for entry in entries)
    num_passed = sum(isinstance(entry, Quarantine) for entry in entries)
    assert num_loads > num_kills / 8
    print(f"{num_kills} kills, {num_loads} loads, {num_passed} generations passed over, bit-equal at the end")
    if memory:
        came_from = [path.read_text() for path in (tmp_path / "diary").glob("*/0-came-from")]
        num_near = sum("the hosts' memory" in text for text in came_from)
        print(f"{num_near} of {len(came_from)} attempts went on from the nodes' memory")
        assert num_kills / 8 < num_near < len(came_from)


def _assert_every_sample_once(wanted: Wanted, alone: Wanted) -> None:
    """Each rank has read, step by step, the samples that it reads where nothing happens."""
    per_step = wanted.recipe.grad_accum
    ours, theirs = (
        samples_read(one.diary, wanted.recipe.world_size, per_step) for one in (wanted, alone) if one.diary
    )
    assert {len(of_rank) for of_rank in theirs} == {wanted.num_steps * per_step}
    assert ours == theirs


def assert_the_time_adds_up(store: Path, *, num_steps: int) -> None:
    (found,), skipped = long_runs(LocalStore(store))
    assert skipped == ()
    assert found.steps[-1] == num_steps
    assert sum(found.phases.values()) == pytest.approx(found.wall_sec, rel=0.005)


def _start(wanted: Wanted, tmp_path: Path) -> list[BaseProcess]:
    meeting = tmp_path / f"rendezvous-{time.monotonic_ns()}"
    ranks: list[BaseProcess] = [
        FORKS.Process(target=_be_a_rank, args=(wanted, rank, meeting, tmp_path), daemon=True)
        for rank in range(2)
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


def _be_a_rank(wanted: Wanted, rank: int, meeting: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    with marking_phases(tmp_path / f"phases-{rank}"):
        attempt(wanted)
    os._exit(0)
