"""What an older version left unfinished goes on with today's code: a stopped run, an interrupted sweep.

``whole`` in that store is the same run, which the older version never stopped: what ``stopped`` must become. Losses
and weights are held against it within bounds, since another CPU rounds otherwise than the one that began it; on
the same one they are equal to the bit. What is lost on the way, such as moments or the position, is far outside.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.older_store import files, longhaul, unpack

STEPS = 80
# One process in place of two ranks, another strategy, and the same samples in each step.
ALONE = ("strategy=ddp", "world_size=1", "grad_accum=2", "steps=50")


def test_a_stopped_run_ends_as_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    older = unpack(tmp_path)
    stopped_at = len(course_of(older, "stopped"))
    assert 0 < stopped_at < STEPS

    longhaul(older, "train", "stopped.yaml", "--store", "results")

    ours, theirs = (course_of(older, run) for run in ("stopped", "whole"))
    assert len(ours) == STEPS
    assert ours[: stopped_at + 5] == pytest.approx(theirs[: stopped_at + 5], rel=1e-4)
    assert ours == pytest.approx(theirs, rel=1e-2)
    for name, value in weights_of(older, "whole").items():
        np.testing.assert_allclose(weights_of(older, "stopped")[name], value, atol=1e-2, err_msg=name)


def test_a_stopped_run_goes_on_under_another_strategy_and_size(tmp_path: Path) -> None:
    older = unpack(tmp_path)
    flags = [word for change in ALONE for word in ("--set", change)]

    longhaul(older, "train", "stopped.yaml", "--store", "results", "--executor", "inline", *flags)

    assert course_of(older, "stopped") == pytest.approx(course_of(older, "whole")[:50], rel=1e-4)


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


def course_of(folder: Path, run: str) -> list[float]:
    """The loss of each step, whichever version did it."""
    report = json.loads(longhaul(folder, "report", "--store", "results", "--name", "course", "--json"))
    (course,) = [one for one in _long_runs(report) if one["name"] == run]
    assert course["steps"] == list(range(1, len(course["steps"]) + 1))
    return list(course["losses"])


def weights_of(folder: Path, run: str) -> dict[str, Any]:
    place = folder / f"weights-{run}"
    if not place.exists():
        longhaul(folder, "checkpoints", "export", "--run", run, "--store", "results", "--to", str(place))
    return load_file(place / "model.safetensors")
