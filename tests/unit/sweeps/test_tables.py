"""What people read before and after a sweep; golden files, from fixed rows."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Cell, Run, expand
from jobs.sweeps.scoreboard import Score, scores
from jobs.sweeps.tables import plan_table, score_table
from jobs.training.task.measurement import Failure, Measurement
from reporting.results.records import RunRecord
from tests.conftest import Golden
from tests.unit.builders import GB, group, measurement, plans_of, record, run_of, sweep

OOM = Failure(status="oom", reason="no more", phase="window")
CRASH = Failure(status="crash", reason="RuntimeError: boom", phase="window")
SPEC = sweep(axes={"strategy": ["ddp", "zero2"], "world_size": [1, 2, 4]}, repeats=2)


def cells(spec: SweepSpec = SPEC) -> list[Cell]:
    return expand(spec, ["local"])


def rows(cell: Cell, *outcomes: float | Failure, spec: SweepSpec = SPEC) -> list[RunRecord]:
    """One row per outcome: a failure, or the seconds of a step."""
    found = []
    for repeat, outcome in enumerate(outcomes, start=1):
        run = replace(run_of(spec), cell=cell, repeat=repeat)
        told = outcome if isinstance(outcome, Failure) else _measured(run, outcome)
        found.append(record(spec, run, told, group(devices=(8,))))
    return found


def _measured(run: Run, step_s: float) -> Measurement:
    return measurement(run.run_id, num_ranks=run.cell.recipe.world_size, step_s=step_s)


def score(*outcomes: float | Failure) -> Score:
    first = cells()[0]
    return scores([first], rows(first, *outcomes))[0]


def scaling(**throughput: float) -> dict[int, tuple[object, int | None]]:
    """World size -> efficiency and baseline, of ddp; ``ws2=0.1`` is a step of a tenth of a second."""
    ddp = {cell.recipe.world_size: cell for cell in cells() if cell.recipe.strategy == "ddp"}
    found = [row for name, step_s in throughput.items() for row in rows(ddp[int(name[2:])], step_s)]
    return {
        score.cell.recipe.world_size: (score.scaling, score.baseline)
        for score in scores(list(ddp.values()), found)
    }


def test_a_score_is_the_median_of_the_repeats_and_their_spread() -> None:
    found = score(0.1, 0.2, 0.4)
    assert found.tokens_per_sec == pytest.approx(64 / 0.2)
    assert found.spread == pytest.approx(0.6546, abs=1e-4)
    assert (found.step_p50_s, found.step_p95_s) == (0.2, 0.4)
    assert found.tokens_per_sec_per_device == found.tokens_per_sec


def test_a_failed_repeat_counts_in_the_status_and_not_in_the_numbers() -> None:
    found = score(0.1, CRASH)
    assert found.tokens_per_sec == pytest.approx(640)
    assert (found.status, found.spread) == ("1 crash", None)


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ((), "missing"),
        ((0.1, 0.1), "ok"),
        ((OOM, OOM), "oom"),
        ((OOM, 0.1), "1 oom"),
        ((OOM, CRASH, OOM), "2 oom, 1 crash"),
    ],
)
def test_the_status_says_what_went_wrong_and_how_often(outcomes: tuple[Any, ...], status: str) -> None:
    assert score(*outcomes).status == status


def test_without_numbers_there_is_no_score_but_a_row() -> None:
    found = score(OOM)
    assert (found.tokens_per_sec, found.step_p50_s, found.scaling, found.mfu) == (None, None, None, None)


def test_scaling_is_against_the_smallest_world_size_that_was_measured() -> None:
    assert scaling(ws1=0.1, ws2=0.1, ws4=0.2) == {
        1: (pytest.approx(1.0), 1),
        2: (pytest.approx(1.0), 1),
        4: (pytest.approx(0.5), 1),
    }
    assert scaling(ws2=0.1, ws4=0.2) == {1: (None, 2), 2: (pytest.approx(1.0), 2), 4: (pytest.approx(0.5), 2)}


def test_a_failed_small_world_is_no_baseline() -> None:
    one, two, _ = (cell for cell in cells() if cell.recipe.strategy == "ddp")
    found = scores([one, two], [*rows(one, CRASH), *rows(two, 0.1)])
    assert [(score.scaling, score.baseline) for score in found] == [(None, 2), (pytest.approx(1.0), 2)]


def test_another_strategys_cell_is_no_baseline() -> None:
    ddp_1, zero2_2 = cells()[0], cells()[4]
    assert (ddp_1.recipe.strategy, zero2_2.recipe.strategy) == ("ddp", "zero2")
    assert scores([ddp_1, zero2_2], [*rows(ddp_1, 0.1), *rows(zero2_2, 0.1)])[1].baseline == 2


def test_rows_of_other_cells_are_left_out() -> None:
    first, second, *_ = cells()
    assert scores([first], rows(second, 0.1))[0].statuses == ()


def test_the_plan_as_a_table(golden: Golden) -> None:
    spec = sweep(
        groups=["local", "nvidia", "tpu"],
        models=["llama-tiny", "mistral-7b"],
        axes={"strategy": ["ddp", "zero3"], "world_size": [1, 4]},
        exclude=[{"group": "tpu", "world_size": 4}],
        limits={"memory_gb_per_worker": 16},
        repeats=3,
    )
    nvidia = group("nvidia", (8, 8), vendor="nvidia", device="NVIDIA H100 80GB HBM3")
    plans = plans_of(spec, group("local", (2,), memory_bytes=16 * GB), nvidia)
    golden("plan_table.txt", plan_table(list(plans.values()), spec.repeats))


def test_a_plan_of_one_cell_as_a_table(golden: Golden) -> None:
    spec = sweep(repeats=1)
    golden("plan_table_small.txt", plan_table(list(plans_of(spec).values()), 1))


def test_the_scores_as_a_table(golden: Golden) -> None:
    outcomes: list[tuple[float | Failure, ...]] = [
        (0.100, 0.102),
        (0.110, 0.112),
        (OOM, OOM),
        (0.090, CRASH),
        (0.120,),
        (),
    ]
    found = [row for cell, of_cell in zip(cells(), outcomes, strict=True) for row in rows(cell, *of_cell)]
    golden("score_table.txt", score_table(scores(cells(), found)))


def test_the_scores_of_accelerators_and_of_cores_in_one_table(golden: Golden) -> None:
    spec = sweep(groups=["local", "nvidia"], axes={"precision": ["bf16"]})
    local, nvidia = (score_of(cell, spec) for cell in expand(spec, []))
    on_device = replace(nvidia, on_host=False, memory_bytes=20 * GB, mfu=0.3374)
    golden("score_table_mixed.txt", score_table([local, on_device]))


def score_of(cell: Cell, spec: SweepSpec) -> Score:
    return scores([cell], rows(cell, 0.1, 0.1, spec=spec))[0]


def test_no_scores_are_an_empty_table() -> None:
    assert score_table([]).count("\n") == 1


def test_no_line_ends_in_blanks() -> None:
    table = score_table(scores(cells(), rows(cells()[0], 0.1)))
    assert [line for line in table.splitlines() if line != line.rstrip()] == []
