"""Steps that are profiled after the window: real ranks, torch's own profiler, and profilers that fail."""

import gzip
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist

from jobs.execution.executor import PeersFailed
from jobs.execution.messages import Event, Finished, Session, Started
from jobs.launch.inline import run_inline
from jobs.launch.torchrun import LauncherPlace
from jobs.training.benchmark import measure, profiling
from jobs.training.benchmark.spans import DATA_WAIT, PROFILE, STEP
from jobs.training.step import train_step
from jobs.training.task.context import Context
from jobs.training.task.job import Job, Precision, Recipe, Strategy, Window
from jobs.training.task.measurement import Measurement, NoProfile, Profile
from tests.live.ranks import run_ranks
from tests.live.servers import free_port
from tests.live.trainings import CPU, recipe_for
from tests.unit.builders import group

RANKS, STEPS = 2, 2
SECRET = "hunter2-in-a-variable"
FEW = [
    recipe_for("ddp", world_size=RANKS),
    replace(recipe_for("fsdp", world_size=RANKS, precision="bf16"), activation_checkpointing="full"),
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"activation_checkpointing": "selective", "cross_entropy": "chunked"},
    {"compile": "block"},
]
ALL = [
    replace(recipe_for(strategy, world_size=RANKS, precision=precision), **settings)
    for strategy, precision, settings in product(get_args(Strategy), get_args(Precision), SETTINGS)
    if (strategy, settings.get("compile")) != ("zero3", "block")
]


def job_of(recipe: Recipe, run_id: str = "a") -> Job:
    window = Window(steps=3, warmup=1, profile_steps=STEPS)
    return Job(run_id=run_id, recipe=recipe, window=window, vendor="cpu")


def measured(recipe: Recipe) -> tuple[Measurement, Measurement | None]:
    """Runs on a rank. What was kept before the profile, and what the run returned."""
    kept: list[Measurement] = []
    rank = dist.get_rank()
    context = Context(rank=rank, world_size=dist.get_world_size(), local_rank=rank, device=CPU)
    found = measure.measure(job_of(recipe), context, keep=kept.append)
    (before,) = kept
    return before, found


def measure_all(recipes: list[Recipe]) -> list[tuple[Measurement, Measurement | None]]:
    os.environ["LONGHAUL_TEST_TOKEN"] = SECRET
    return [measured(recipe) for recipe in recipes]


class WithoutStart(torch.profiler.profile):
    def start(self) -> None:
        raise RuntimeError("it does not start\nas it says at length")


class WithoutResults(torch.profiler.profile):
    def stop(self) -> None:
        super().stop()
        raise OSError("it has no results")


class WithoutEvents(torch.profiler.profile):
    def start(self) -> None:
        """It starts nothing, as a profiler does that a device refuses."""


def measure_with_broken_profilers(recipe: Recipe) -> list[Measurement | None]:
    """Only rank 1's profiler is broken, each time in another way, and the last time not at all."""
    found = []
    for profiler in (WithoutStart, WithoutResults, WithoutEvents, torch.profiler.profile):
        profiling.profile = profiler if dist.get_rank() == 1 else torch.profiler.profile  # type: ignore[misc]  # a class for a class
        found.append(measured(recipe)[1])
    return found


@pytest.mark.parametrize("recipes", [FEW, pytest.param(ALL, marks=pytest.mark.soak)], ids=["few", "all"])
def test_a_profile_follows_the_window_and_changes_none_of_its_numbers(
    recipes: list[Recipe], tmp_path: Path
) -> None:
    ranks = run_ranks(measure_all, recipes, num_ranks=RANKS, tmp_path=tmp_path, deadline_s=1200)
    for recipe, (kept, found), (_, of_other) in zip(recipes, *ranks, strict=True):
        assert found is not None and of_other is None
        assert replace(found, profile=None) == kept
        assert_sensible(found.profile, recipe)


def assert_sensible(found: Profile | NoProfile | None, recipe: Recipe) -> None:
    assert isinstance(found, Profile), f"{recipe}: {found}"
    assert (found.basis, found.num_steps, len(found.ranks)) == ("cpu", STEPS, RANKS)
    for rank in found.ranks:
        assert 0 < rank.exposed_communication <= rank.communication <= 1
        assert 0 < rank.data_wait < 1
        assert rank.step_s > 0 and rank.idle is None
    names = [operation.name for operation in found.operations]
    assert any(name.startswith("gloo:") for name in names)
    assert any(name.startswith(("aten::", "compiled graph ")) for name in names)
    assert_harmless(found.trace)


def assert_harmless(trace: bytes | None) -> None:
    assert trace is not None
    text = gzip.decompress(trace).decode()
    names = Counter(event["name"] for event in json.loads(text)["traceEvents"])
    assert (names[PROFILE], names[STEP], names[DATA_WAIT]) == (1, STEPS, STEPS)
    for secret in (SECRET, str(Path.home()) + "/", str(Path.cwd()), f'"{socket.gethostname()}"'):
        assert secret not in text


def test_a_profiler_that_fails_on_one_rank_costs_the_run_nothing_nor_the_next_run(tmp_path: Path) -> None:
    recipe = recipe_for("ddp", world_size=RANKS)
    found, _ = run_ranks(measure_with_broken_profilers, recipe, num_ranks=RANKS, tmp_path=tmp_path)
    assert [len(run.step_times_s) for run in found if run is not None] == [3, 3, 3, 3]
    *broken, whole = (run.profile for run in found if run is not None)
    assert broken == [
        NoProfile(reason="rank 1: RuntimeError: it does not start"),
        NoProfile(reason="rank 1: OSError: it has no results"),
        NoProfile(reason="rank 1: AssertionError: Profiler must be initialized before stopping trace"),
    ]
    assert isinstance(whole, Profile)


def fail_on_rank_1_under_torchrun(port: int, recipe: Recipe) -> list[Event]:
    """As ``torchrun`` starts it: the ranks' own group, on which both run one job. What this rank told."""
    rank, events = dist.get_rank(), list[Event]()
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

    def fail(*step: Any) -> torch.Tensor:
        if rank == 1 and torch.autograd.profiler._is_profiler_enabled:
            raise RuntimeError("the step did not like it")
        return train_step(*step)

    measure.train_step = fail  # type: ignore[assignment]  # a function for a function
    place = LauncherPlace(rank=rank, local_rank=rank, world_size=RANKS)
    with pytest.raises(PeersFailed):
        run_inline([Session(group=group(), jobs=(job_of(recipe),))], place, events.append)
    return events


def test_a_step_that_fails_on_one_rank_of_torchrun_leaves_the_numbers_to_both(tmp_path: Path) -> None:
    recipe = recipe_for("ddp", world_size=RANKS)
    ranks = run_ranks(fail_on_rank_1_under_torchrun, free_port(), recipe, num_ranks=RANKS, tmp_path=tmp_path)
    outcomes = [event.outcome for events in ranks for event in events if isinstance(event, Finished)]
    first, second = outcomes
    assert isinstance(first, Measurement) and isinstance(second, Measurement)
    assert (first.window_s, first.step_times_s) == (second.window_s, second.step_times_s)
    assert second.profile == NoProfile(reason="crash: RuntimeError: the step did not like it")
    assert isinstance(first.profile, NoProfile)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As a rank has: threads that wait for each other on a busy machine take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_a_step_that_fails_under_the_profiler_costs_the_run_nothing_nor_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [RuntimeError("the step did not like it")]

    def fail_once(*step: Any) -> torch.Tensor:
        if failures and torch.autograd.profiler._is_profiler_enabled:
            raise failures.pop()
        return train_step(*step)

    monkeypatch.setattr(measure, "train_step", fail_once)
    events: list[Event] = []
    jobs = tuple(job_of(recipe_for("ddp", world_size=1), run_id) for run_id in ("a", "b"))
    run_inline(
        [Session(group=group(), jobs=jobs)], LauncherPlace(rank=0, local_rank=0, world_size=1), events.append
    )
    assert [type(event) for event in events] == [Started, Finished, Started, Finished]
    first, second = (event.outcome for event in events if isinstance(event, Finished))
    assert isinstance(first, Measurement) and isinstance(second, Measurement)
    assert first.profile == NoProfile(reason="crash: RuntimeError: the step did not like it")
    assert isinstance(second.profile, Profile)
