"""What people read before and after a sweep; golden files, from fixed rows."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Cell, Run, expand
from jobs.sweeps.score_table import score_table
from jobs.sweeps.tables import plan_table
from jobs.training.task.measurement import Failure, Measurement
from reporting.results.result_rows import row_of
from reporting.results.rows import Row
from tests.conftest import Golden
from tests.unit.builders import GB, group, measurement, plans_of, record, run_of, sweep

OOM = Failure(status="oom", reason="no more", phase="window")
CRASH = Failure(status="crash", reason="RuntimeError: boom", phase="window")
SPEC = sweep(axes={"strategy": ["ddp", "zero2"], "world_size": [1, 2, 4]}, repeats=2)


def cells(spec: SweepSpec = SPEC) -> list[Cell]:
    return expand(spec, ["local"])


def rows(cell: Cell, *outcomes: float | Failure, spec: SweepSpec = SPEC) -> list[Row]:
    """One row per outcome: a failure, or the seconds of a step."""
    found = []
    for repeat, outcome in enumerate(outcomes, start=1):
        run = replace(run_of(spec), cell=cell, repeat=repeat)
        told = outcome if isinstance(outcome, Failure) else _measured(run, outcome)
        stored = record(spec, run, told, group(devices=(8,)))
        found.append(row_of(stored.to_json(), stored.run_id))
    return found


def _measured(run: Run, step_s: float) -> Measurement:
    return measurement(run.run_id, num_ranks=run.cell.recipe.world_size, step_s=step_s)


def line(*outcomes: float | Failure) -> list[str]:
    """What the table says of one cell: devices, runs, tokens/s, spread, per device, p50, p95, scaling, ..."""
    first = cells()[0]
    return words(score_table([first], rows(first, *outcomes)))[0]


def words(table: str) -> list[list[str]]:
    return [text.replace(" of ", "/").split()[1:] for text in table.splitlines()[2:]]


def scaling(**step_s: float | Failure) -> dict[str, str]:
    """World size -> efficiency of ddp, as shown; ``ws2=0.1`` is a step of a tenth of a second."""
    ddp = {cell.recipe.world_size: cell for cell in cells() if cell.recipe.strategy == "ddp"}
    found = [row for name, outcome in step_s.items() for row in rows(ddp[int(name[2:])], outcome)]
    return {shown[0]: shown[7] for shown in words(score_table(list(ddp.values()), found))}


def test_numbers_are_medians_of_the_repeats_with_their_spread() -> None:
    assert line(0.1, 0.2, 0.4)[1:7] == ["3", "320", "65.5%", "320", "200.0", "400.0"]


def test_a_failed_repeat_counts_in_the_status_and_not_in_the_numbers() -> None:
    found = line(0.1, CRASH)
    assert (found[1], found[2], found[3]) == ("2", "640", "-")
    assert found[-2:] == ["1", "crash"]


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
    found = " ".join(line(*outcomes))
    assert found.endswith(f" {status}")


def test_without_numbers_there_is_a_line_without_numbers() -> None:
    assert line(OOM)[1:] == ["1", "-", "-", "-", "-", "-", "-", "-", "-", "oom"]


def test_scaling_is_against_the_smallest_world_size_that_was_measured() -> None:
    assert scaling(ws1=0.1, ws2=0.1, ws4=0.2) == {"1": "100%/1", "2": "100%/1", "4": "50%/1"}
    assert scaling(ws2=0.1, ws4=0.2) == {"1": "-", "2": "100%/2", "4": "50%/2"}


def test_beside_a_failed_small_world_the_next_one_is_no_hundred_percent() -> None:
    assert scaling(ws1=CRASH, ws2=0.1) == {"1": "-", "2": "-", "4": "-"}


def test_another_strategys_cell_is_no_baseline() -> None:
    ddp_1, zero2_2 = cells()[0], cells()[4]
    assert (ddp_1.recipe.strategy, zero2_2.recipe.strategy) == ("ddp", "zero2")
    found = words(score_table([ddp_1, zero2_2], [*rows(ddp_1, 0.1), *rows(zero2_2, 0.1)]))
    assert found[1][7] == "100%/2"


def test_rows_of_other_cells_are_left_out_and_are_no_baseline() -> None:
    one, two, *_ = cells()
    table = score_table([two], [*rows(one, 0.1), *rows(two, 0.1)])
    assert [(shown[1], shown[7]) for shown in words(table)] == [("1", "100%/2")]
    assert words(score_table([one], rows(two, 0.1)))[0][-1] == "missing"


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
    golden("score_table.txt", score_table(cells(), found))


def test_the_scores_of_accelerators_and_of_cores_in_one_table(golden: Golden) -> None:
    spec = sweep(groups=["local", "nvidia"], axes={"precision": ["bf16"]})
    local, nvidia = expand(spec, [])
    on_device = [
        replace(row, peak_allocated_bytes_max=20 * GB, mfu=0.3374)
        for row in rows(nvidia, 0.1, 0.1, spec=spec)
    ]
    found = [*rows(local, 0.1, 0.1, spec=spec), *on_device]
    golden("score_table_mixed.txt", score_table([local, nvidia], found))


def test_no_scores_are_an_empty_table() -> None:
    assert score_table([], []).count("\n") == 1


def test_no_line_ends_in_blanks() -> None:
    table = score_table(cells(), rows(cells()[0], 0.1))
    assert [line for line in table.splitlines() if line != line.rstrip()] == []
