"""What an older version left unfinished goes on with today's code: a stopped run, an interrupted sweep.

``whole`` in that store is the same run, which the older version never stopped: ``stopped`` must end like it.
Gradients, losses and weights are compared within bounds, since another CPU rounds otherwise than the one that
began the run. On the same CPU they are equal to the bit. Lost moments or a wrong position are far outside.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file

from tests.unit.older_store import files, longhaul, unpack

STEPS, STOPPED_AT, EVAL_EVERY = 80, 43, 10
# Differences in rounding grow with each step: so many of them after the stop are still alike to `AT_FIRST`.
NUM_CLOSE = 7
AT_FIRST, AT_THE_END = 1e-3, 2e-2
# A busy machine starts workers slowly.
PATIENT = ("--set", "limits.schedule_timeout_s=300")
# One process in place of two ranks, another strategy, and the same samples in each step.
ALONE = ("strategy=ddp", "world_size=1", "grad_accum=2", f"steps={STOPPED_AT + NUM_CLOSE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Step by step, over all ranks, so that it does not depend on how many they are."""

    grad_norms: list[float]
    positions: list[int]
    learning_rates: list[float]
    val_losses: list[float]


@pytest.mark.soak
def test_a_stopped_run_ends_as_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    older = unpack(tmp_path)

    longhaul(older, "train", "stopped.yaml", "--store", "results", *PATIENT)

    stopped, whole = courses_of(older)
    assert len(stopped.grad_norms) == STEPS
    assert_goes_on_alike(stopped, whole)
    assert stopped.val_losses == pytest.approx(whole.val_losses, rel=AT_THE_END)
    ours = weights_of(older, "stopped")
    for name, value in weights_of(older, "whole").items():
        np.testing.assert_allclose(ours[name], value, atol=AT_THE_END, err_msg=name)


def test_a_stopped_run_goes_on_under_another_strategy_and_size(tmp_path: Path) -> None:
    older = unpack(tmp_path)
    flags = [word for change in ALONE for word in ("--set", change)]

    longhaul(older, "train", "stopped.yaml", "--store", "results", "--executor", "inline", *flags)

    stopped, whole = courses_of(older)
    assert len(stopped.grad_norms) == STOPPED_AT + NUM_CLOSE
    assert_goes_on_alike(stopped, whole)


@pytest.mark.parametrize("run", ["whole", "recovered"])
def test_a_finished_run_has_nothing_to_do(run: str, tmp_path: Path) -> None:
    older = unpack(tmp_path)
    before = files(older / "results")
    said = longhaul(older, "train", f"{run}.yaml", "--store", "results")
    assert "nothing to do" in said
    assert files(older / "results") == before


def test_of_an_interrupted_sweep_only_the_missing_cell_is_measured(tmp_path: Path) -> None:
    older = unpack(tmp_path)
    sweep = older / "results" / "sweeps" / "interrupted"
    (kept,) = sweep.glob("runs/*/result.json")
    was = kept.read_bytes()

    longhaul(older, "sweep", "interrupted.yaml", "--store", "results", "--executor", "inline")

    assert kept.read_bytes() == was
    rows = [json.loads(path.read_text()) for path in sweep.glob("runs/*/result.json")]
    assert sorted((row["strategy"], row["status"]) for row in rows) == [("ddp", "ok"), ("fsdp", "ok")]


def courses_of(folder: Path) -> tuple[Course, Course]:
    """Of ``stopped`` and ``whole``, whichever version did their steps."""
    longhaul(folder, "report", "--store", "results", "--name", "course")
    rows = pyarrow.parquet.read_table(folder / "results/reports/course/steps.parquet").to_pylist()
    return _course("stopped", rows), _course("whole", rows)


def _course(run: str, rows: list[dict[str, Any]]) -> Course:
    steps = [row for row in rows if (row["run"], row["rank"], row["superseded"]) == (run, 0, False)]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    return Course(
        grad_norms=[row["grad_norm"] for row in steps],
        positions=[row["position"] for row in steps],
        learning_rates=[row["learning_rate"] for row in steps],
        val_losses=[row["val_loss"] for row in steps if row["val_loss"] is not None],
    )


def assert_goes_on_alike(stopped: Course, whole: Course) -> None:
    num_steps = len(stopped.grad_norms)
    assert stopped.positions == whole.positions[:num_steps]
    assert stopped.learning_rates == pytest.approx(whole.learning_rates[:num_steps])
    close = slice(STOPPED_AT + NUM_CLOSE)
    assert stopped.grad_norms[close] == pytest.approx(whole.grad_norms[close], rel=AT_FIRST)
    num_looks = (STOPPED_AT + NUM_CLOSE) // EVAL_EVERY
    assert num_looks > STOPPED_AT // EVAL_EVERY
    assert stopped.val_losses[:num_looks] == pytest.approx(whole.val_losses[:num_looks], rel=AT_FIRST)


def weights_of(folder: Path, run: str) -> dict[str, Any]:
    place = folder / f"weights-{run}"
    if not place.exists():
        longhaul(folder, "checkpoints", "export", "--run", run, "--store", "results", "--to", str(place))
    return load_file(place / "model.safetensors")
