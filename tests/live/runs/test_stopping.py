"""A run that is asked to stop loses nothing, whenever it is asked: it saves, ends, and goes on to the bit."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import LogView, Stopped
from checkpointing.stores.local import LocalStore
from cluster.cluster_file import read_cluster
from cluster.local_ray.simulated import MixedCluster, mixed_cluster
from jobs.runs.data_check.find import find_tokens
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.stop_request import StopRequest
from reporting.long_runs.reading import one_run, read_parts
from tests.live.attempts import Story, Wanted, attempt_each, digests_of, newest_manifest
from tests.live.command_line import DEADLINE_S, run, running, write_spec
from tests.live.machines.test_mixed import drain
from tests.live.ranks import run_ranks
from tests.live.tokens.test_token_runs import data, write_index
from tests.live.trainings import STRATEGIES, recipe_for

STOP = StopRequest(aim="stop", why="a test")
MOVE_ON = StopRequest(aim="move on", why="a test")
NUM_STEPS, EVAL_EVERY = 6, 3
NUM_RANKS = 2

RUN = """
name: r
model: llama-tiny
strategy: zero2
world_size: 2
seq_len: 32
steps: 100000
data: {samples: 64}
optimizer: {warmup_steps: 5}
checkpoint: {every_steps: 1000000, on_busy: wait, retention: {epochs: false}}
limits: {schedule_timeout_s: 60}
guard: {spike_ratio: null}
"""


PAIR = """
cluster_name: pair
max_workers: 2
available_node_types:
  head: {resources: {CPU: 0}}
  nvidia:
    max_workers: 2
    resources: {CPU: 1, GPU: 1}
    labels: {longhaul.group: nvidia, longhaul.vendor: nvidia, longhaul.simulated: "true"}
head_node_type: head
"""


def go(wanted: list[Wanted], tmp_path: Path, deadline_s: float = 300.0) -> list[Story]:
    """Rank 0's stories."""
    return run_ranks(attempt_each, wanted, num_ranks=NUM_RANKS, tmp_path=tmp_path, deadline_s=deadline_s)[0]


def a_run(name: str, store: Path, strategy: Any = "zero2") -> Wanted:
    return Wanted(
        name=name,
        recipe=recipe_for(strategy, world_size=NUM_RANKS),
        num_steps=NUM_STEPS,
        store=store,
        every_steps=4,
        eval_every=EVAL_EVERY,
    )


def view_of(store: Path, name: str) -> LogView:
    return Repository(LocalStore(store), name).refresh()


# When a rank is asked to stop, counted in the questions that it asks in that attempt, and where all then end.
PLACES = (
    (1, None, "before anything was loaded"),
    (2, 0, "before the first step"),
    (3, 0, "while its first samples are waited for"),
    (4, 1, "in the first step"),
    (2, 1, "when a checkpoint was loaded, and before a step"),
    (2, 1, "there once more"),
    (2, 1, "and again: the checkpoint is not suspected for it"),
    (5, 3, "in the second step, after which an evaluation is due"),
    (5, 3, "in the third batch of that evaluation, made up for"),
    (8, 4, "in the step after it"),
    (7, 6, "in the second batch of an evaluation after the last step"),
)


def test_wherever_it_is_stopped_all_ranks_save_the_same_step_and_it_goes_on_to_the_bit(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    straight = a_run("straight", store)
    chain = [
        replace(straight, name="chain", stop_request=STOP, stopped_at=at, stopped_rank=number % NUM_RANKS)
        for number, (at, _, _) in enumerate(PLACES)
    ]
    chain[-1] = replace(chain[-1], stop_request=MOVE_ON)
    stories = go([straight, *chain, replace(chain[0], stop_request=None)], tmp_path)[1:]

    ends = [None if story.is_withdrawn else story.end.step for story in stories]
    assert ends == [*(step for _, step, _ in PLACES), NUM_STEPS]
    assert [story.end.problem for story in stories[1:]] == [None] * len(PLACES)
    assert [story.start.step for story in stories[1:]] == [0, *ends[1:-1]]
    assert digests_of(newest_manifest(store, "chain")) == digests_of(newest_manifest(store, "straight"))
    told = [one.entry for one in Repository(LocalStore(store), "chain").records()]
    assert [one.step for one in told if isinstance(one, Stopped)] == ends[1:-2], (
        "who moves on has not stopped"
    )
    assert ends_recorded(store, "chain") == [end or 0 for end in ends]
    assert {metric_of(store, name, step) for name in ("chain", "straight") for step in (3, 6)} == {
        metric_of(store, "straight", 3),
        metric_of(store, "straight", 6),
    }


def ends_recorded(store: Path, run: str) -> list[int]:
    """The steps at which rank 0's attempts said that they end, also of those that did none."""
    parts = one_run(LocalStore(store), run).of("incidents")
    rows = [row for _, part in read_parts(LocalStore(store), parts, []) for row in part.to_pylist()]
    ended = [row for row in rows if row["kind"] in ("end", "stop") and row["rank"] == 0]
    return [row["step"] for row in sorted(ended, key=lambda row: row["term"])]


def metric_of(store: Path, name: str, step: int) -> float:
    return [one for one in view_of(store, name).generations if one.step == step][-1].metrics["val_loss"]


@pytest.mark.soak
def test_stopped_at_any_question_that_a_rank_asks_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    store = tmp_path / "store"
    straight = a_run("straight", store)
    [alone] = go([straight], tmp_path)
    assert alone.num_asks > 2 + NUM_STEPS
    stopped = [
        replace(straight, name=f"stop-{at}", stop_request=STOP, stopped_at=at, stopped_rank=at % NUM_RANKS)
        for at in range(1, alone.num_asks + 1)
    ]
    stories = go([*stopped, *(replace(one, stop_request=None) for one in stopped)], tmp_path)

    expected = digests_of(newest_manifest(store, "straight"))
    steps = []
    for one, first, second in zip(stopped, stories, stories[len(stopped) :], strict=False):
        assert digests_of(newest_manifest(store, one.name)) == expected, one.name
        assert view_of(store, one.name).finished_step == NUM_STEPS
        if not first.is_withdrawn:
            assert first.end.problem is None
            assert second.start.step == first.end.step, "what was done was saved"
            steps.append(first.end.step)
    assert sorted(set(steps)) == list(range(NUM_STEPS + 1))


def command_of(spec: Path, store: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", "train", str(spec), "--store", str(store), *flags]


def status_of(store: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((store / "runs/r/status.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def is_training(store: Path, *, beyond: int = 0) -> Callable[[], bool]:
    return lambda: status_of(store).get("stage") == "training" and status_of(store)["step"] > beyond


def wait_until(is_so: Callable[[], bool], deadline_s: float = DEADLINE_S, every_s: float = 0.05) -> None:
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(every_s)


def ctrl_c(process: "subprocess.Popen[str]") -> None:
    """As a terminal does: all processes of the command's group get it."""
    os.killpg(process.pid, signal.SIGINT)


def sigterm(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)


def stop_while(
    command: list[str], is_time: Callable[[], bool], stop: Callable[["subprocess.Popen[str]"], object]
) -> tuple[int, str]:
    """The exit code and what it said."""
    with running(command) as process:
        wait_until(is_time)
        stop(process)
        output, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output


def stopped_step(store: Path, output: str) -> int:
    """Where it says that it stopped, if there is a whole checkpoint of exactly that step."""
    view = view_of(store, "r")
    newest = view.generations[-1]
    last = output.splitlines()[-1]
    assert last[9:].startswith(
        f"r: stopped at step {view.stopped_step} ({newest.name}), resume with `longhaul train "
    )
    assert newest.step == view.stopped_step
    assert newest.is_good
    return newest.step


def test_ctrl_c_over_ray_ends_well_with_the_last_step_saved(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN), tmp_path / "store"
    code, output = stop_while(command_of(spec, store), is_training(store), ctrl_c)
    assert code == 0, output
    assert stopped_step(store, output) > 0
    assert "Traceback" not in output


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_process_group_leaves_ray_to_the_driver(
    number: signal.Signals, tmp_path: Path
) -> None:
    """As ``timeout``, ``kill -TERM -GROUP`` and a terminal that closes send it."""
    spec, store = write_spec(tmp_path, RUN), tmp_path / "store"
    code, output = stop_while(
        command_of(spec, store), is_training(store), lambda process: os.killpg(process.pid, number)
    )
    assert code == 0, output
    assert stopped_step(store, output) > 0


@pytest.mark.soak
def test_over_ray_a_run_stopped_three_ways_is_the_run_that_was_left_alone(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN), tmp_path / "store"
    command = command_of(spec, store)

    def longhaul_stop(_process: "subprocess.Popen[str]") -> None:
        done = run([sys.executable, "-m", "jobs.cli", "stop", "r", "--store", str(store), "--json"])
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["state"], said["step"]) == ("stopped", said["generation_step"])

    steps = [0]
    for stop in (ctrl_c, sigterm, longhaul_stop):
        code, output = stop_while(command, is_training(store, beyond=steps[-1] + 1), stop)
        assert code == 0, output
        steps.append(stopped_step(store, output))
    assert steps == sorted(set(steps))

    whole = ["--set", f"steps={steps[-1] + 5}"]
    last = run([*command, *whole, "--json"])
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["resumed_step"] == steps[-1]
    alone = run([*command_of(spec, tmp_path / "alone"), *whole])
    assert alone.returncode == 0, alone.stderr
    assert digests_of(newest_manifest(store, "r")) == digests_of(newest_manifest(tmp_path / "alone", "r"))


@pytest.mark.soak
@pytest.mark.parametrize("stop", [ctrl_c, sigterm])
def test_while_it_waits_for_its_place_it_ends_at_once(
    stop: Callable[["subprocess.Popen[str]"], object], tmp_path: Path
) -> None:
    spec, store = write_spec(tmp_path, RUN), tmp_path / "store"
    started: list[float] = []

    def stop_and_time(process: "subprocess.Popen[str]") -> None:
        stop(process)
        started.append(time.monotonic())

    # A start tells of itself before its workers are there.
    code, output = stop_while(command_of(spec, store), lambda: view_of(store, "r").term > 0, stop_and_time)
    assert code == 0, output
    assert output.splitlines()[-1][9:].startswith("r: stopped at step 0, with nothing to save, resume")
    assert view_of(store, "r").stopped_step == 0


@pytest.mark.soak
def test_inline_and_under_torchrun_the_ranks_hear_signals_themselves(tmp_path: Path) -> None:
    store = tmp_path / "inline"
    spec = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1"))
    command = command_of(spec, store, "--executor", "inline")
    code, output = stop_while(command, is_training(store), ctrl_c)
    assert code == 0, output
    assert stopped_step(store, output) > 0

    store = tmp_path / "torchrun"
    spec = write_spec(tmp_path, RUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, *command_of(spec, store)[1:]]
    _, output = stop_while(command, is_training(store), sigterm)
    view = view_of(store, "r")
    assert view.stopped_step == view.generations[-1].step > 0, output
    assert f"r: stopped at step {view.stopped_step}" in output

    code, output = stop_while(
        command,
        is_training(store),
        lambda _: run([sys.executable, "-m", "jobs.cli", "stop", "r", "--store", str(store)]),
    )
    assert code == 0, output
    assert view_of(store, "r").stopped_step == view_of(store, "r").generations[-1].step


@pytest.mark.soak
def test_while_a_rank_waits_for_samples_that_do_not_come_all_stop(tmp_path: Path) -> None:
    write_index(tmp_path, *(bytes(4000) for _ in range(2)))
    spec = write_spec(tmp_path, RUN.replace("data: {samples: 64}", data(tmp_path, "")))
    tokens = find_tokens(RunSpec.load(spec))
    late = tuple(shard.name for shard in tokens.index.shards)
    # Its third and fourth question are asked while it waits, the fifth too.
    wanted = replace(
        a_run("r", tmp_path / "store"), tokens=tokens, late=late, stop_request=STOP, stopped_at=5
    )
    [story] = go([wanted], tmp_path)
    assert (story.end.step, story.end.problem, story.end.stop_request) == (0, None, STOP)
    assert view_of(tmp_path / "store", "r").stopped_step == 0


@pytest.mark.soak
def test_in_an_evaluation_whose_samples_do_not_come_all_stop_and_it_is_still_due(tmp_path: Path) -> None:
    write_index(tmp_path, *(bytes(4000) for _ in range(2)))
    spec = write_spec(tmp_path, RUN.replace("data: {samples: 64}", data(tmp_path, "")))
    tokens = find_tokens(RunSpec.load(spec))
    # All that is trained on lies in the first shard, all held-out samples but two in the second.
    wanted = replace(
        a_run("r", tmp_path / "store"),
        tokens=tokens,
        late=("1.bin",),
        eval_every=1,
        stop_request=STOP,
        stopped_at=12,
    )
    [story] = go([wanted], tmp_path, deadline_s=60.0)
    assert (story.end.step, story.end.problem, story.end.stop_request) == (1, None, STOP)
    assert newest_manifest(tmp_path / "store", "r").cut.state["is_evaluation_due"]


@pytest.mark.soak
def test_the_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """In the midst of a step of minutes, which the first one waits for."""
    spec, store = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1")), tmp_path / "store"
    flags = ("--executor", "inline", "--set", "grad_accum=100000", "--set", "data.samples=200000")
    with running(command_of(spec, store, *flags)) as process:
        killer = threading.Timer(DEADLINE_S, process.kill)
        killer.start()
        read_until(process, "r: begins at step 0")
        # What comes before the step takes far less.
        in_its_step_s = seconds_computed(process) + 3
        wait_until(lambda: seconds_computed(process) > in_its_step_s)
        process.send_signal(signal.SIGINT)
        read_until(process, "r: Ctrl-C: it saves; a second Ctrl-C ends it at once")
        process.send_signal(signal.SIGINT)
        code = process.wait(DEADLINE_S)
        killer.cancel()
    assert code == 130
    assert view_of(store, "r").generations == ()


def seconds_computed(process: "subprocess.Popen[str]") -> float:
    return float(psutil.Process(process.pid).cpu_times().user)


def read_until(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdout is not None
    seen = []
    for one in process.stdout:
        seen.append(one)
        if one.rstrip() == line:
            return
    raise AssertionError(f"it ended before it said {line!r}: {seen}")


@pytest.mark.soak
def test_a_run_whose_node_drains_moves_to_another_one_and_loses_no_step(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path, RUN.replace("world_size: 2", "world_size: 1")), tmp_path / "store"
    (tmp_path / "pair.yaml").write_text(PAIR)
    with mixed_cluster(read_cluster(tmp_path / "pair.yaml")) as cluster:
        command = command_of(spec, store, "--set", "group=nvidia")
        with running(command, **cluster.environment) as process:
            wait_until(is_training(store))
            [left] = nodes_at_work(cluster)
            drain(left, cluster)
            wait_until(lambda: view_of(store, "r").term == 2 and bool(nodes_at_work(cluster)))
            [taken] = nodes_at_work(cluster)
            wait_until(is_training(store, beyond=view_of(store, "r").generations[-1].step))
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert taken != left
    found = view_of(store, "r").generations
    moved_at = max(one.step for one in found if one.term == 1)
    assert f"r: goes on after step {moved_at}" in output
    assert f"draining: {left}" in output
    # What it told of before it moved was not done again.
    assert moved_at >= max(steps_told(output.partition("draining")[0]), default=0)


def nodes_at_work(cluster: MixedCluster) -> list[str]:
    """The names of those on which a rank is."""
    found = []
    for name in ("nvidia-0", "nvidia-1"):
        place = f"{cluster.root / name}/"
        nodes = [
            one for one in psutil.process_iter(["cmdline"]) if place in " ".join(one.info["cmdline"] or [])
        ]
        children = [child for one in nodes for child in one.children(recursive=True)]
        if any("RayTrainWorker" in " ".join(child.cmdline()) for child in children):
            found.append(name)
    return found


def steps_told(output: str) -> list[int]:
    return [int(step) for step in re.findall(r"^\S+ r: step ([0-9]+)/", output, re.MULTILINE)]


# By default it is stopped at chosen places: `test_wherever_it_is_stopped_...`.
@pytest.mark.soak
@pytest.mark.parametrize(("num_stops", "strategies"), [(8, ("ddp", "fsdp")), (200, STRATEGIES)])
def test_stops_at_random_moments_all_end_in_a_saved_run_that_goes_on(
    num_stops: int, strategies: Sequence[str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 2**31))
    print(f"\nLONGHAUL_SEED={seed} repeats it")
    rng = random.Random(seed)
    store = tmp_path / "store"
    straight = [a_run(f"{name}-straight", store, name) for name in strategies]
    most = max(story.num_asks for story in go(straight, tmp_path))
    wanted = []
    # Some are asked for at a moment that the run does not live to see.
    for number in range(2 * num_stops):
        one = straight[number % len(straight)]
        # Several in a row, of one run: each goes on from what the one before it saved.
        name = f"{one.recipe.strategy}-{number // (4 * len(straight))}"
        rank, at = rng.randrange(NUM_RANKS), rng.randint(1, most // 2)
        wanted.append(replace(one, name=name, stop_request=STOP, stopped_rank=rank, stopped_at=at))
    names = dict.fromkeys(one.name for one in wanted)
    wanted += [replace(next(one for one in wanted if one.name == name), stop_request=None) for name in names]
    # What has ended keeps threads and memory as long as its process lives.
    batches = [wanted[first : first + 50] for first in range(0, len(wanted), 50)]
    stories = [story for batch in batches for story in go(batch, tmp_path)]
    assert sum(story.is_withdrawn or story.end.stop_request is not None for story in stories) >= num_stops
    reached: dict[str, int] = {}
    for one, story in zip(wanted, stories, strict=True):
        if story.is_withdrawn:
            continue
        assert story.start.step == reached.get(one.name, 0), one.name
        assert story.end.problem is None
        reached[one.name] = story.end.step
    for name in names:
        strategy = name.partition("-")[0]
        expected = digests_of(newest_manifest(store, f"{strategy}-straight"))
        assert digests_of(newest_manifest(store, name)) == expected, name
