"""Rows become cells: what counts as a repeat of what, and what the repeats say together."""

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.comparing import compare_groups
from reporting.analysis.findings import CellSummary, Subject
from reporting.results.rows import Row
from tests.unit.result_rows import row, rows


def cell(*found: Row) -> CellSummary:
    (one,) = summarise(found)
    return one


def scaling(*found: Row) -> dict[tuple[str, int], tuple[float | None, int | None]]:
    """(Group, world size) -> efficiency and baseline."""
    return {
        (each.group, each.subject.world_size): (
            each.scaling_efficiency_pct,
            each.scaling_baseline_world_size,
        )
        for each in summarise(found)
    }


def test_repeats_of_a_cell_are_one_cell() -> None:
    told = {"mfu": 0.4, "h2d_gbps_per_gpu": 2.0, "mean_loss": 5.0, "energy_joules_per_token": 0.7}
    found = cell(*rows(900.0, 1000.0, 1100.0, world_size=2, **told))
    assert found.tokens_per_sec
    assert found.tokens_per_sec_per_device
    assert found.step_time_sec
    assert (found.tokens_per_sec.median, found.tokens_per_sec.num_runs) == (1000.0, 3)
    assert found.tokens_per_sec_per_device.median == 500.0
    assert found.step_time_sec.median == pytest.approx(0.064)
    assert (found.mfu, found.h2d_gbps_per_gpu, found.loss) == (0.4, 2.0, 5.0)
    assert found.joules_per_token == 0.7
    assert (found.status, found.num_failed, len(found.rows)) == ("ok", 0, 3)


def test_one_cell_of_two_sweeps_is_two() -> None:
    assert [each.sweep for each in summarise([*rows(1.0, sweep="b"), *rows(1.0, sweep="a")])] == ["a", "b"]


def test_a_run_that_was_attempted_again_counts_once_with_its_newest_attempt() -> None:
    old, new = row(None, run_id="one", attempt=1), row(1000.0, run_id="one", attempt=2)
    for order in ((old, new), (new, old)):
        found = cell(*order)
        assert (found.rows, found.num_failed) == ((new,), 0)


def test_runs_of_one_name_in_two_sweeps_are_two() -> None:
    assert len(summarise([row(run_id="one", sweep="a"), row(run_id="one", sweep="b")])) == 2


def test_imported_rows_go_by_group_and_subject() -> None:
    imported = {"cell_id": None, "run_id": None, "sweep": None, "imported": True}
    found = summarise([*rows(1.0, 2.0, **imported), row(3.0, strategy="fsdp", **imported)])
    assert [(len(each.rows), each.sweep, each.flags) for each in found] == [
        (2, "unknown", ("unstable", "imported")),
        (1, "unknown", ("imported",)),
    ]
    assert len({each.cell_id for each in found}) == 2


def test_what_nobody_knows_has_a_place_too() -> None:
    found = cell(Row(source="old.csv"), Row(source="other.csv"))
    assert found.subject == Subject(
        model="unknown",
        strategy="unknown",
        world_size=0,
        seq_len=0,
        micro_batch=0,
        grad_accum=0,
        precision="unknown",
    )
    assert (found.group, found.vendor, found.tokens_per_sec, found.scaling_efficiency_pct) == (
        "unknown",
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("statuses", "status", "reason", "flags"),
    [
        (["ok", "ok"], "ok", None, ()),
        (["oom", "ok"], "ok", "oom!", ("some failed",)),
        (["crash", "oom", "oom"], "oom", "oom!", ()),
        (["crash", "oom"], "crash", "crash!", ()),
    ],
)
def test_a_cell_is_ok_if_any_run_is_else_its_commonest_failure(
    statuses: list[str], status: str, reason: str | None, flags: tuple[str, ...]
) -> None:
    found = cell(
        *(
            row(
                1000.0 if each == "ok" else None,
                status=each,
                error_reason=None if each == "ok" else f"{each}!",
            )
            for each in statuses
        )
    )
    assert (found.status, found.error_reason, found.flags) == (status, reason, flags)
    assert found.num_failed == sum(each != "ok" for each in statuses)


def test_a_cell_of_which_a_window_compiled_again_says_so() -> None:
    assert cell(*rows(1000.0, recompilations=0)).flags == ()
    assert cell(row(recompilations=1)).flags == ("recompiled",)


def test_efficiency_is_against_the_smallest_world_size_that_was_measured() -> None:
    found = scaling(
        row(None, world_size=1), *rows(1900.0, 1800.0, 2000.0, world_size=2, cell_id="two"),
        row(2774.0, world_size=4, cell_id="four"), row(None, world_size=8, cell_id="eight"),
    )  # fmt: skip
    assert found == {
        ("nvidia", 1): (None, None),
        # It is the baseline only because one device has no numbers: 100 % would say that nothing was lost.
        ("nvidia", 2): (None, None),
        ("nvidia", 4): (pytest.approx(73.0), 2),
        ("nvidia", 8): (None, None),
    }


def test_the_smallest_world_size_of_all_keeps_all_of_its_throughput() -> None:
    assert scaling(row(1000.0), row(1500.0, world_size=2, cell_id="two")) == {
        ("nvidia", 1): (pytest.approx(100.0), 1),
        ("nvidia", 2): (pytest.approx(75.0), 1),
    }


def test_throughput_and_step_time_of_an_even_number_of_runs_give_the_tokens_of_a_step() -> None:
    found = cell(*rows(500.0, 900.0, 1100.0, 2000.0, tokens_per_step=64))
    assert found.tokens_per_sec and found.step_time_sec
    assert found.tokens_per_sec.median * found.step_time_sec.median == pytest.approx(64)
    assert found.step_time_sec.low and found.tokens_per_sec.high
    assert found.step_time_sec.low * found.tokens_per_sec.high == pytest.approx(64)


def test_what_another_tool_says_of_its_step_time_stays() -> None:
    found = cell(row(1000.0, tokens_per_step=64, mean_step_time_sec=0.1, imported=True))
    assert found.step_time_sec and found.step_time_sec.median == 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"sweep": "other"},
        {"group": "amd"},
        {"model": "other"},
        {"strategy": "fsdp"},
        {"seq_len": 128},
        {"per_device_batch": 2},
        {"grad_accum": 2},
        {"precision": "bf16"},
    ],
)
def test_a_baseline_differs_in_world_size_alone(change: dict[str, object]) -> None:
    found = summarise([row(1000.0, world_size=1), row(1500.0, world_size=2, cell_id="two", **change)])
    assert {each.subject.world_size: each.scaling_efficiency_pct for each in found} == {1: 100.0, 2: 100.0}


def test_the_order_of_rows_does_not_matter_to_the_order_of_cells() -> None:
    found = [
        row(group=group, strategy=strategy, world_size=size, cell_id=f"{group}{strategy}{size}")
        for group in ("b", "a")
        for strategy in ("fsdp", "ddp")
        for size in (10, 2)
    ]
    cells = summarise(found)
    assert [(each.group, each.subject.strategy, each.subject.world_size) for each in cells] == [
        (group, strategy, size) for group in ("a", "b") for strategy in ("ddp", "fsdp") for size in (2, 10)
    ]
    assert summarise(found[::-1]) == cells


def test_severe_outliers_are_counted_and_shown_and_stay() -> None:
    steady = tuple(1.0 + step / 1000 for step in range(100))
    wild = (9.0, *steady[1:])
    found = cell(row(raw_step_times=steady), row(raw_step_times=wild))
    assert (found.num_severe_outliers, found.num_steps, found.flags) == (1, 200, ("outliers",))
    assert found.rows[1].raw_step_times == wild


def test_more_than_one_step_in_twenty_far_out_is_unstable() -> None:
    steps = tuple(1.0 + step / 1000 for step in range(94))
    found = cell(row(raw_step_times=(*steps, *[9.0] * 6)))
    assert found.flags == ("unstable", "outliers")


@pytest.mark.parametrize("column", ["raw_step_times", "step_time_p50_sec", "mean_step_time_sec"])
def test_run_medians_that_spread_over_a_tenth_are_unstable(column: str) -> None:
    def steps(value: float) -> Row:
        return row(**{column: (value,) * 5 if column == "raw_step_times" else value})

    assert cell(steps(1.0), steps(1.05), steps(1.16)).flags == ("unstable",)
    assert cell(steps(1.0), steps(1.05), steps(1.10)).flags == ()


def test_memory_is_the_most_that_any_run_took() -> None:
    found = cell(
        row(peak_vram_gb=20.0, device_memory_bytes=80 * 10**9, predicted_bytes=19 * 10**9),
        row(peak_vram_gb=21.0),
        row(),
    )
    assert (found.peak_vram_gb, found.device_memory_gb, found.predicted_gb) == (21.0, 80.0, 19.0)


def test_simulated_runs_are_called_so() -> None:
    assert cell(row(), row(simulated=True)).flags == ("simulated",)


def test_step_times_that_are_no_times_are_no_reason_to_fail() -> None:
    nan = float("nan")
    found = cell(
        row(raw_step_times=(0.0,) * 5), row(raw_step_times=(nan,) * 5), row(raw_step_times=(1.0,) * 5)
    )
    assert found.flags == ()


def test_the_largest_micro_batch_is_one_subject_whatever_was_found() -> None:
    found = [
        row(group=group, cell_id=group, micro_batch_asked="max", per_device_batch=size, grad_accum=64 // size)
        for group, size in (("amd", 16), ("nvidia", 4))
    ]
    amd, nvidia = summarise(found)
    assert amd.subject == nvidia.subject
    assert str(amd.subject) == "llama-tiny ddp x1 S64 bmax of 64 fp32"
    (comparison,) = compare_groups((amd, nvidia))
    assert comparison.ratio == 1
    (other,) = summarise([row(per_device_batch=16, grad_accum=4)])
    assert other.subject != amd.subject


def test_the_short_runs_of_a_search_for_the_best_are_no_cells() -> None:
    (only,) = summarise([row(1000.0), row(900.0, cell_id="short", rung=1)])
    assert only.cell_id == "cell"
