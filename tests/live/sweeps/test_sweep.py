"""A sweep from its file to its table, as a user runs it: real Ray, real training, real processes."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.live.command_line import DEADLINE_S, QUICK, files, rows, run, running, sweep_command, write_spec

KILLS_IN_CI, KILLS_IN_SOAK = 1, 20


def test_a_sweep_leaves_one_small_result_per_run_and_again_has_nothing_to_do(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path), store)

    done = run(command)

    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(store)
    assert [row["status"] for row in found] == ["ok", "ok"]
    names = [f"sweeps/quick/runs/{path.parent.name}/result.json" for path in store.glob("sweeps/*/runs/*/*")]
    assert files(store) == sorted(["sweeps/quick/sweep.json", *names])
    assert all((store / name).stat().st_size <= 10_000 for name in names)
    for row in found:
        assert row["tokens_per_sec"] * row["mean_step_time_sec"] == pytest.approx(32)
        assert row["peak_vram_gb"] is None
        assert len(row["raw_step_times"]) == 4

    before = {path: path.stat().st_mtime_ns for path in store.rglob("result.json")}

    # With a folder that cannot be made, a sweep that wanted Ray would fail.
    again = run(command, RAY_TMPDIR="/nowhere")

    assert again.returncode == 0, again.stdout + again.stderr
    assert "runs," not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in store.rglob("result.json")} == before


@pytest.mark.parametrize("address", ["127.0.0.1:1", "http://127.0.0.1:8265", "head"])
def test_an_address_at_which_no_cluster_answers_is_one_line(address: str, tmp_path: Path) -> None:
    done = run(sweep_command(write_spec(tmp_path), tmp_path / "store"), RAY_ADDRESS=address)

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"longhaul sweep: RAY_ADDRESS: {address}: no Ray cluster answers there (")
    assert done.stdout == ""
    assert not (tmp_path / "store").exists()


@pytest.mark.soak
def test_workers_start_where_the_environment_lies_in_a_path_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / 'my clone; of "it"'
    place.mkdir()
    (place / "venv").symlink_to(sys.prefix)
    store = place / "results"
    spec = write_spec(place, QUICK)
    _, *words = sweep_command(spec, store, "--set", "axes.strategy=ddp", "--set", "repeats=1")

    done = run([str(place / "venv" / "bin" / "python"), *words])

    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["status"] for row in rows(store)} == {"ok"}


def test_impossible_and_predicted_oom_cells_leave_rows_beside_good_ones(tmp_path: Path) -> None:
    spec = """
name: mixed
groups: [local]
models: [llama-tiny]
axes: {strategy: ddp, world_size: [1, 4096], seq_len: 32}
include: [{model: llama-3.1-8b, world_size: 1}]
measure: {steps: 3, warmup: 1}
repeats: 1
"""
    store = tmp_path / "store"

    done = run(sweep_command(write_spec(tmp_path, spec), store, "--json"))

    assert done.returncode == 1, done.stdout + done.stderr
    found = {(row["model"], row["world_size"]): row for row in rows(store)}
    assert {key: row["status"] for key, row in found.items()} == {
        ("llama-tiny", 1): "ok",
        ("llama-tiny", 4096): "unschedulable",
        ("llama-3.1-8b", 1): "oom",
    }
    predicted = found["llama-3.1-8b", 1]["error"]
    assert predicted["phase"] == "predicted"
    assert predicted["wanted_bytes"] > 8e9 * 16
    assert "4096 were asked for" in found["llama-tiny", 4096]["error"]["reason"]


# By default `test_inline` runs out of memory, and `test_launch` goes on after a worker that was killed.
@pytest.mark.soak
def test_a_worker_out_of_memory_leaves_a_row_and_the_next_cell_is_measured(tmp_path: Path) -> None:
    spec = """
name: tight
models: [llama-mini]
axes: {strategy: ddp, world_size: 1, seq_len: [16]}
include: [{model: llama-tiny}]
measure: {steps: 3, warmup: 1}
repeats: 1
limits: {memory_gb_per_worker: 0.2, try_anyway: true}
"""
    store = tmp_path / "store"

    done = run(sweep_command(write_spec(tmp_path, spec), store))

    assert done.returncode == 1, done.stdout + done.stderr
    found = {row["model"]: row for row in rows(store)}
    assert found["llama-mini"]["status"] == "oom"
    assert found["llama-mini"]["error"]["phase"] in ("setup", "warmup")
    assert found["llama-mini"]["error"]["wanted_bytes"] > 0
    assert found["llama-tiny"]["status"] == "ok"


def test_a_loss_that_is_not_finite_is_no_result_and_can_be_retried(tmp_path: Path) -> None:
    store = tmp_path / "store"
    flags = ["--executor", "inline", "--set", "optimizer.lr=1e30", "--set", "axes.strategy=ddp"]
    command = sweep_command(write_spec(tmp_path), store, *flags)

    done, retried = run(command), run([*command, "--retry-failed"])

    assert (done.returncode, retried.returncode) == (1, 1), done.stdout + done.stderr
    (row,) = rows(store)
    assert row["status"] == "invalid_loss"
    assert row["tokens_per_sec"] is None
    assert row["attempt"] == 2
    assert [name for name in files(store) if name.endswith("attempts/001.json")]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGHUP, marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_it_cleanly_and_keeps_what_was_measured(number: signal.Signals, tmp_path: Path) -> None:
    store = tmp_path / "store"
    spec = write_spec(tmp_path, QUICK.replace("steps: 4", "steps: 200").replace("repeats: 1", "repeats: 3"))

    with running(sweep_command(spec, store)) as process:
        _wait_until(lambda: len(rows(store)) >= 1)
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 130, output
    assert output.endswith("longhaul sweep: interrupted; the same command goes on\n")
    assert all(row["status"] == "ok" for row in rows(store))
    assert 1 <= len(rows(store)) < 6
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_driver_killed_at_a_random_moment_loses_and_repeats_nothing(tmp_path: Path) -> None:
    _kill_and_finish(tmp_path, KILLS_IN_CI)


@pytest.mark.soak
def test_a_driver_killed_twenty_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    _kill_and_finish(tmp_path, KILLS_IN_SOAK)


def _kill_and_finish(tmp_path: Path, num_kills: int) -> None:
    """``kill -9`` of the driver, again and again; then one start that is left alone."""
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 10_000))
    print(f"LONGHAUL_SEED={seed}")
    dice = random.Random(seed)
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path, QUICK.replace("repeats: 1", f"repeats: {num_kills}")), store)
    kept: dict[Path, bytes] = {}
    for _ in range(num_kills):
        with running(command) as process:
            time.sleep(dice.uniform(0.5, 15))
            os.kill(process.pid, signal.SIGKILL)
        kept |= {path: path.read_bytes() for path in store.rglob("result.json") if path not in kept}

    done = run(command, deadline_s=DEADLINE_S + 20 * num_kills)

    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    assert len(rows(store)) == 2 * num_kills
    assert all(row["status"] == "ok" and row["attempt"] == 1 for row in rows(store))
    assert {path: path.read_bytes() for path in kept} == kept, f"seed {seed}: a finished run was repeated"
    assert not [name for name in files(store) if ".tmp-" in name and "result.json" in name]


@pytest.mark.soak
def test_two_sweeps_of_one_name_at_once_do_no_harm(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = sweep_command(write_spec(tmp_path), store)

    with running(command) as one, running(command) as other:
        outputs = [process.communicate(timeout=200)[0] for process in (one, other)]

    assert (one.returncode, other.returncode) == (0, 0), "\n".join(outputs)
    assert [row["status"] for row in rows(store)] == ["ok", "ok"]
    assert all(row["attempt"] == 1 for row in rows(store))


@pytest.mark.parametrize(
    "strategies",
    # Of all, zero3 leaves most behind.
    [["zero3", "ddp"], pytest.param(["zero3", "zero2", "fsdp", "ddp"], marks=pytest.mark.soak)],
    ids=len,
)
def test_a_later_cell_of_a_group_computes_the_same_as_in_a_fresh_process(
    strategies: list[str], tmp_path: Path
) -> None:
    text = QUICK.replace("[ddp, fsdp]", str(strategies)).replace("warmup: 1", "warmup: 5")
    spec = write_spec(tmp_path, text)

    shared = run(sweep_command(spec, tmp_path / "group"))
    fresh = run(sweep_command(spec, tmp_path / "run", "--set", "isolation=run"))

    assert (shared.returncode, fresh.returncode) == (0, 0), shared.stdout + fresh.stdout
    references = [row["loss_metrics"]["reference"] for row in rows(tmp_path / "group")]
    assert references == pytest.approx([references[0]] * len(strategies), abs=1e-5), (
        "all strategies train the same"
    )
    for one, other in zip(rows(tmp_path / "group"), rows(tmp_path / "run"), strict=True):
        assert one["run_id"] == other["run_id"]
        assert one["loss_metrics"]["reference"] == other["loss_metrics"]["reference"]


def _wait_until(is_so: "object", deadline_s: float = 120) -> None:
    assert callable(is_so)
    end = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
