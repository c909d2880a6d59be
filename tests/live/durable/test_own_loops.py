"""The examples of docs/own-loop.md: killed and gone on with, they end as if left alone, to the bit."""

import importlib.util
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from checkpointing.generations.repository import Repository
from checkpointing.stores.local import LocalStore
from jobs.durable import Run
from reporting.recording.parts import decode_part, parts_of, rows_in
from tests.live.command_line import DEADLINE_S, ROOT, run, running
from tests.live.durable.forked import example_of

SAVED_EVERY, KILLED_AT, STEPS = 5, 12, 16
# The Trainer's example has as many steps in an epoch.
EPOCH_ENDS_AT = 11
# One thread: sums of the same numbers are then the same in every process.
ON_CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def forked(example: str, *jobs: dict[str, Any]) -> list[list[int]]:
    done = run([sys.executable, "-m", "tests.live.durable.forked", example, json.dumps(jobs)], **ON_CPU)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("codes ")[2])


def job(store: Path, *, ranks: int = 0, **faults: int) -> dict[str, Any]:
    return {"store": str(store), "steps": STEPS, "ranks": ranks, **faults}


def last_save(store: Path, name: str = "own") -> dict[str, bytes]:
    """Every tensor of the last step's save. The examples seed torch's generator alone."""
    view = Repository(LocalStore(store), name).refresh()
    newest = view.generations[-1]
    assert (newest.step, view.finished_step) == (STEPS, STEPS)
    files = (store / f"runs/{name}/gen/{newest.name}").glob("*.safetensors")
    found = {key: value for file in files for key, value in load_file(file).items()}
    return {
        key: value.numpy().tobytes()
        for key, value in sorted(found.items())
        if not key.endswith(("/python", "/numpy"))
    }


def attempts(store: Path, name: str = "own") -> int:
    return Repository(LocalStore(store), name).refresh().term


def resumed_steps(store: Path, name: str = "own") -> list[int]:
    """Where attempts began that loaded a generation, by the run's log."""
    entries = (record.entry for record in Repository(LocalStore(store), name).records())
    return [int(entry.name.partition("-")[0]) for entry in entries if type(entry).__name__ == "Load"]


def losses(store: Path) -> dict[int, float]:
    """The loss of each step, as the run recorded it; where a step was done again, the later one."""
    parts = [part for part in parts_of(LocalStore(store), "own") if (part.table, part.rank) == ("steps", 0)]
    rows = (row for part in parts for row in rows_in(decode_part(part, LocalStore(store).get(str(part)))))
    return {row["step"]: row["loss"] for row in rows}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of the plain example, run on one process, killed and gone on with, and run on two ranks."""
    folder = tmp_path_factory.mktemp("own")
    killed = job(folder / "killed", kill_at=KILLED_AT)
    codes = forked(
        "own_loop", job(folder / "one"), killed, job(folder / "killed"), job(folder / "two", ranks=2)
    )
    assert codes == [[0], [-9], [0], [0, 0]]
    return folder


def test_a_killed_loop_of_plain_torch_ends_as_one_left_alone(left_alone: Path) -> None:
    assert attempts(left_alone / "killed") == 2
    assert resumed_steps(left_alone / "killed")[0] >= SAVED_EVERY
    assert last_save(left_alone / "killed") == last_save(left_alone / "one")


def torchrun(folder: Path, *flags: str, script: tuple[str, ...] = ()) -> list[str]:
    """Rank 1 of two is killed once, with the file ``killed`` as its mark; ``script`` stands before it."""
    launcher = ["--standalone", "--nproc-per-node", "2", "--shutdown-timeout", "2", *flags]
    killed = ["tests.live.durable.killed_once", "own_loop", str(KILLED_AT), str(folder / "killed")]
    words = [*script, *killed, str(folder), str(STEPS)]
    return [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "--", *words]


@pytest.mark.soak
def test_under_torchrun_a_killed_rank_costs_the_run_no_bit(left_alone: Path, tmp_path: Path) -> None:
    command = torchrun(tmp_path)

    killed, done = run(command, **ON_CPU), run(command, **ON_CPU)

    assert killed.returncode != 0 and done.returncode == 0, done.stderr
    assert attempts(tmp_path) == 2
    assert resumed_steps(tmp_path)[0] >= SAVED_EVERY
    assert last_save(tmp_path) == last_save(left_alone / "two")


def test_a_process_that_waits_with_everything_loaded_takes_a_killed_ranks_place_and_no_bit_is_lost(
    left_alone: Path, tmp_path: Path
) -> None:
    command = torchrun(tmp_path, "--max-restarts", "1", script=("jobs.spares", "-m"))

    done = run(command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", **ON_CPU)

    assert done.returncode == 0, done.stderr
    assert "failed (exitcode: -9) local_rank: 1" in done.stderr
    told = [path.read_text(encoding="utf-8").split() for path in tmp_path.glob("killed.*")]
    (waiting,) = {int(parent) for parent, _ in told}
    assert [had_torch for _, had_torch in told] == ["True"] * 4
    with suppress(psutil.NoSuchProcess):
        psutil.Process(waiting).wait(DEADLINE_S)
    assert attempts(tmp_path) == 2
    assert SAVED_EVERY <= resumed_steps(tmp_path)[0] <= KILLED_AT
    assert last_save(tmp_path) == last_save(left_alone / "two")


def test_without_workers_ray_train_runs_the_loop_here_and_after_an_error_it_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, failed, no_workers = tmp_path / "left", tmp_path / "failed", 0
    main = example_of("ray_train").main

    main(str(left), STEPS, no_workers)
    with monkeypatch.context() as patch, pytest.raises(ArithmeticError):
        patch.setattr(Run, "record", _fails_at(KILLED_AT))
        main(str(failed), STEPS, no_workers)
    main(str(failed), STEPS, no_workers)

    assert (attempts(left), attempts(failed)) == (1, 2)
    assert SAVED_EVERY <= resumed_steps(failed)[0] <= KILLED_AT
    assert losses(failed) == losses(left)
    assert last_save(failed) == last_save(left)


def _fails_at(step: int) -> Callable[..., None]:
    record = Run.record

    def fail_or_record(run: Run, **values: Any) -> None:
        if run.step == step:
            raise ArithmeticError
        record(run, **values)

    return fail_or_record


@pytest.mark.soak
def test_under_ray_train_a_killed_worker_costs_the_run_no_bit(tmp_path: Path) -> None:
    """Ray itself starts the workers anew, and the run goes on from its newest save."""
    mark, left, killed = tmp_path / "mark", tmp_path / "left", tmp_path / "killed"

    for store, killed_at in ((left, -1), (killed, KILLED_AT)):
        script = ["-m", "tests.live.durable.killed_in_ray", str(killed_at), str(mark), str(store), str(STEPS)]
        with running([sys.executable, *script], PYTHONPATH=str(ROOT), **ON_CPU) as trained:
            said, _ = trained.communicate(timeout=DEADLINE_S)
            assert trained.returncode == 0, said[-3000:]

    assert mark.exists()
    assert (attempts(left), attempts(killed)) == (1, 2)
    assert SAVED_EVERY <= resumed_steps(killed)[0] <= KILLED_AT
    assert len(losses(left)) == STEPS
    assert losses(killed).keys() >= set(range(resumed_steps(killed)[0] + 1, STEPS + 1))
    assert losses(killed).items() <= losses(left).items()
    assert last_save(killed) == last_save(left)


@pytest.mark.soak
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None,
    reason="transformers' Trainer needs accelerate, which is no test extra: pip install accelerate",
)
def test_a_trainer_of_transformers_that_is_killed_or_stopped_ends_as_one_left_alone(tmp_path: Path) -> None:
    """The kill is in the middle of an epoch, the stop at the end of one, where the example evaluates."""
    left_alone, killed, stopped = (tmp_path / name for name in ("left", "killed", "stopped"))

    codes = forked(
        "hugging_face",
        job(left_alone),
        job(killed, kill_at=KILLED_AT + 2),
        job(killed),
        job(stopped, stop_at=EPOCH_ENDS_AT - 1),
        job(stopped),
    )

    assert codes == [[0], [-9], [0], [0], [0]]
    assert EPOCH_ENDS_AT < resumed_steps(killed, "hf")[0] < STEPS
    assert resumed_steps(stopped, "hf") == [EPOCH_ENDS_AT]
    assert last_save(killed, "hf") == last_save(left_alone, "hf")
    assert last_save(stopped, "hf") == last_save(left_alone, "hf")
