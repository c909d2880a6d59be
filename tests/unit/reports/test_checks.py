"""What a report finds plausible and what not: each check seen on good cells and on bad ones."""

import math
from dataclasses import replace
from typing import Any

import pytest

from reporting.analysis.cells import summarise
from reporting.analysis.checks import MOST_LINES, check
from reporting.analysis.findings import CellSummary, Check
from reporting.analysis.inspections.numbers import agreement
from reporting.results.rows import Row
from tests.unit.example_findings import example_findings, hostile_findings, long_run
from tests.unit.result_rows import row
from tests.unit.summaries import cell

TIMES = "step time consistent"
THROUGHPUT = "throughput plausible"
ORDER = "memory ordered as theory says"
EQUAL = "loss equal across strategies"
ORIGIN = "measured by us on real devices"


def lines(name: str, *cells: CellSummary) -> list[Check]:
    return [found for found in check(cells) if found.name == name]


def only(name: str, *cells: CellSummary) -> Check:
    (found,) = lines(name, *cells)
    return found


def with_rows(*changes: dict[str, Any], **cell_changes: Any) -> CellSummary:
    rows = tuple(Row(source="made up", group="blue", **change) for change in changes)
    return cell(rows=rows, num_runs=len(rows), **cell_changes)


IDENTITY = "throughput and step time agree"
AGREES: dict[str, Any] = {
    "tokens_per_sec": 1_000.0, "mean_step_time_sec": 0.128, "tokens_per_step": 128, "world_size": 2,
    "per_device_batch": 1, "seq_len": 64,
}  # fmt: skip
CAPPED = "clocks or power capped"
ATTENTION = "attention by a fast kernel"
AT_ITS_CAP: dict[str, Any] = {
    "throttled_pct": 93.0,
    "throttled": (("power cap", 93.0),),
    "power_cap_watts": 700.0,
    "power_cap_default_watts": 700.0,
}
MEASURED_PEAK = {"tokens_per_sec_per_device": 4_000.0, "flops_per_token": 1e9}


@pytest.mark.parametrize(
    ("name", "judged", "level", "said"),
    [
        (THROUGHPUT, cell(mfu=0.42), "ok", "42 %"),
        (THROUGHPUT, cell(mfu=1.34), "failed", "134 % of the datasheet peak"),
        (THROUGHPUT, cell(row={**MEASURED_PEAK, "measured_peak_flops": 5e12}), "ok", "80 %"),
        (THROUGHPUT, cell(row={**MEASURED_PEAK, "measured_peak_flops": 2e12}), "failed", "200 % of"),
        (THROUGHPUT, cell(row={"device_name": "Abacus 3"}), "unknown", "Abacus 3"),
        (TIMES, with_rows(*({"step_time_p50_sec": t} for t in (1.0, 1.04, 1.09))), "ok", "8.65 %"),
        (TIMES, with_rows(*({"step_time_p50_sec": t} for t in (1.0, 1.04, 1.2))), "warning", "1 s to 1.2 s"),
        (IDENTITY, with_rows(AGREES, AGREES), "ok", "as it should be"),
        (IDENTITY, with_rows(AGREES, {**AGREES, "tokens_per_sec": 0.0}), "failed",
         "1 of 2 ok runs: 0 tokens/s at 0.128 s a step"),
        (IDENTITY, with_rows({**AGREES, "tokens_per_sec": -5.0}), "failed", "1 of 1 ok run: -5 tokens/s"),
        (IDENTITY, with_rows({**AGREES, "mean_step_time_sec": 0.0}), "failed", "at 0 s a step"),
        (IDENTITY, with_rows({**AGREES, "tokens_per_sec": None}), "failed", "unknown tokens/s"),
        (IDENTITY, with_rows(AGREES, {**AGREES, "mean_step_time_sec": 0.064}), "failed",
         "1,000 tokens/s at 0.064 s a step are 64 tokens a step, and it has 128"),
        (IDENTITY, with_rows({**AGREES, "tokens_per_step": None, "grad_accum": 2}), "failed", "it has 256"),
        ("memory below the device's", cell(peak_vram_gb=14.0, device_memory_gb=24.0), "ok", "58.3 %"),
        ("memory below the device's", cell(peak_vram_gb=23.5, device_memory_gb=24.0), "warning", "98 %"),
        ("memory below the device's", cell(peak_vram_gb=25.0, device_memory_gb=24.0), "failed", "104 %"),
        ("memory below the device's", cell(peak_vram_gb=25.0), "unknown", "not known"),
        ("memory below the device's", cell(peak_vram_gb=25.0, device_memory_gb=0.0), "unknown", "not known"),
        ("memory as predicted", cell(peak_vram_gb=11.0, predicted_gb=10.0), "ok", "10 %"),
        ("memory as predicted", cell(peak_vram_gb=14.0, predicted_gb=10.0), "warning", "+40 %"),
        ("loss decreasing", cell(row={"loss_first": 8.0, "loss_median_last_tenth": 6.0}), "ok", "-25 %"),
        ("loss decreasing", cell(row={"loss_first": 6.0, "loss_median_last_tenth": 8.0}), "warning", "33."),
        ("loss decreasing", with_rows({"status": "invalid_loss"}), "failed", "not finite"),
        (
            "scaling efficiency sane",
            cell(world_size=4, scaling_efficiency_pct=73.0, scaling_baseline_world_size=2),
            "ok",
            "73 % of the baseline",
        ),
        (
            "scaling efficiency sane",
            cell(world_size=4, scaling_efficiency_pct=130.0, scaling_baseline_world_size=2),
            "warning",
            "130.0 % of 2 devices'",
        ),
        (
            "scaling efficiency sane",
            cell(world_size=4, scaling_efficiency_pct=20.0, scaling_baseline_world_size=2),
            "warning",
            "20.0 % of 2 devices'",
        ),
        (
            "stragglers",
            cell(row={"world_size": 2, "rank_total_sec_max": 10.2, "rank_total_sec_min": 10.0}),
            "ok",
            "2 % behind",
        ),
        (
            "stragglers",
            cell(row={"world_size": 2, "rank_total_sec_max": 11.0, "rank_total_sec_min": 10.0}),
            "warning",
            "10.0 % longer",
        ),
        (ATTENTION, cell(row={"attention_kernel": "flash"}), "ok", "as it should be"),
        (ATTENTION, cell(row={"attention_kernel": "math", "attention": "auto"}), "warning", "slow kernel"),
        (ATTENTION, cell(row={"attention_kernel": "math", "attention": "math"}), "ok", "as it should be"),
        (CAPPED, cell(row=AT_ITS_CAP), "ok", "held back in 93 % of the looks"),
        (CAPPED, cell(row={"power_cap_watts": 700.0}), "ok", "as it should be"),
        (CAPPED, cell(row={**AT_ITS_CAP, "power_cap_watts": 500.0}), "warning", "500 W, by default it is"),
        (CAPPED, cell(row={**AT_ITS_CAP, "throttled": (("heat", 40.0),)}), "warning", "by heat in 40 %"),
        (CAPPED, cell(row={**AT_ITS_CAP, "throttled": (("heat", 4.0),)}), "ok", "93 %"),
        (CAPPED, with_rows({}, AT_ITS_CAP, {"throttled_pct": 9.0, "throttled": (("hardware", 9.0),)}),
         "warning", "by hardware in 9 %"),
        ("enough repeats", cell(num_runs=4), "ok", "4 runs"),
        ("enough repeats", cell(num_runs=3), "warning", "1 cell with 3 ok runs"),
        (ORIGIN, cell(), "ok", "as it should be"),
        (ORIGIN, cell(flags=("simulated",)), "warning", "1 cell of simulated devices"),
        (ORIGIN, cell(flags=("simulated",), row={"simulated": True, "vendor": "cpu", "fp8": "rowwise"}),
         "warning", "1 cell of simulated fp8"),
        (ORIGIN, cell(flags=("imported",)), "warning", "1 cell imported"),
    ],
)  # fmt: skip
def test_a_check_says_what_it_saw(name: str, judged: CellSummary, level: str, said: str) -> None:
    found = only(name, judged)
    assert found.level == level
    assert said in found.found
    assert bool(found.advice) == (level != "ok")


@pytest.mark.parametrize(
    "name",
    [
        "memory below the device's", "memory as predicted", ORDER, "loss decreasing", EQUAL,
        "scaling efficiency sane", "stragglers", "clocks or power capped",
    ],
)  # fmt: skip
def test_a_check_without_numbers_says_nothing(name: str) -> None:
    assert lines(name, cell()) == []


def test_what_an_import_lacks_is_no_wrong_number() -> None:
    assert lines(IDENTITY, with_rows({**AGREES, "tokens_per_sec": None, "imported": True})) == []
    doubted = with_rows({**AGREES, "mean_step_time_sec": 0.064, "imported": True, "warnings": ("doubted",)})
    assert lines(IDENTITY, doubted) == []
    assert only(IDENTITY, with_rows({**AGREES, "tokens_per_sec": -5.0, "imported": True})).level == "failed"


def test_an_import_without_throughput_where_it_says_one_is_flagged() -> None:
    cells = summarise(
        [row(1000.0, imported=True, cell_id="a"), replace(row(imported=True), tokens_per_sec=0.0)]
    )
    assert [seen.level for seen in agreement(cells)] == ["failed"]


def test_names_and_numbers_that_nobody_expects_stop_no_check() -> None:
    found = hostile_findings()
    assert all(line.found for line in check(found.cells, found.runs))


def test_no_cells_no_checks() -> None:
    assert check(()) == ()


def test_the_baseline_of_a_scaling_efficiency_is_not_judged_by_itself() -> None:
    assert (
        lines("scaling efficiency sane", cell(scaling_efficiency_pct=100.0, scaling_baseline_world_size=2))
        == []
    )


@pytest.mark.parametrize(
    ("above", "below"),
    [("ddp", "fsdp"), ("fsdp", "zero3"), ("ddp", "zero1"), ("zero1", "zero2"), ("zero2", "zero3")],
)
def test_who_shards_more_must_not_need_more(above: str, below: str) -> None:
    more, less = cell(strategy=above, peak_vram_gb=10.0), cell(strategy=below, peak_vram_gb=9.0)
    assert only(ORDER, more, less).level == "ok"
    turned = only(ORDER, cell(strategy=above, peak_vram_gb=9.0), cell(strategy=below, peak_vram_gb=10.0))
    assert turned.level == "warning"
    assert f"{below} needs 10 GB, {above} 9 GB" in turned.found


def test_memory_is_ordered_only_among_cells_that_did_the_same() -> None:
    more, less = {"strategy": "ddp", "peak_vram_gb": 9.0}, {"strategy": "fsdp", "peak_vram_gb": 10.0}
    assert lines(ORDER, cell(**more), cell(**less, group="red")) == []
    assert lines(ORDER, cell(**more), cell(**less, micro_batch=2)) == []
    assert lines(ORDER, cell(**more, world_size=1), cell(**less, world_size=1)) == []


def of_loss(strategy: str, loss: float, seed: int = 1, **changes: Any) -> CellSummary:
    row = {"loss_reference": loss, "loss_reference_step": 10, "seed": seed}
    return cell(strategy=strategy, row=row, **changes)


def test_strategies_of_one_seed_that_agree_are_equal() -> None:
    assert only(EQUAL, of_loss("ddp", 6.1), of_loss("fsdp", 6.11), of_loss("zero2", 6.09)).level == "ok"


def test_of_three_losses_the_odd_one_is_named() -> None:
    found = lines(EQUAL, of_loss("ddp", 6.1), of_loss("fsdp", 6.11), of_loss("zero2", 5.0))
    failed, fine = found
    assert (failed.level, fine.level) == ("failed", "ok")
    assert "zero2" in failed.subject
    assert "5.0000" in failed.found and "6.1000" in failed.found
    assert fine.subject == "2 cells"


def test_of_two_losses_that_differ_both_are_named() -> None:
    found = only(EQUAL, of_loss("ddp", 6.1), of_loss("fsdp", 5.0, group="red"))
    assert found.level == "failed"
    assert "fsdp" in found.subject and "ddp" in found.found


def test_losses_of_other_seeds_and_other_batches_are_not_compared() -> None:
    assert lines(EQUAL, of_loss("ddp", 6.1), of_loss("fsdp", 5.0, seed=2)) == []
    assert lines(EQUAL, of_loss("ddp", 6.1), of_loss("fsdp", 5.0, micro_batch=2)) == []


def test_losses_in_fp8_are_compared_with_their_like_alone() -> None:
    def in_fp8(strategy: str, loss: float, fp8: str) -> CellSummary:
        row = {"loss_reference": loss, "loss_reference_step": 10, "seed": 1, "precision": "bf16", "fp8": fp8}
        return cell(strategy=strategy, row=row)

    usual = cell(row={"loss_reference": 6.1, "loss_reference_step": 10, "seed": 1, "precision": "bf16"})
    assert lines(EQUAL, usual, in_fp8("ddp", 5.0, "tensorwise"), in_fp8("ddp", 4.0, "rowwise")) == []
    assert only(EQUAL, in_fp8("ddp", 5.0, "rowwise"), in_fp8("fsdp", 4.0, "rowwise")).level == "failed"


def test_what_is_right_is_one_line_per_check() -> None:
    found = only(THROUGHPUT, *(cell(world_size=size, mfu=size / 100) for size in (20, 31, 45)))
    assert (found.level, found.subject, found.found) == ("ok", "3 cells", "20 to 45 % of the device's peak")


def test_what_is_wrong_is_bounded_and_begins_with_the_worst() -> None:
    cells = [cell(world_size=size, mfu=1 + size / 100) for size in range(1, 100)]
    found = lines(THROUGHPUT, *cells)
    assert len(found) == MOST_LINES + 1
    assert "199 %" in found[0].found
    assert found[-1].subject == f"{99 - MOST_LINES} more"


def test_a_device_without_a_peak_is_one_line_for_all_its_cells() -> None:
    cells = [cell(world_size=size, row={"device_name": "Abacus 3"}) for size in range(1, 40)]
    assert only(THROUGHPUT, *cells).subject == "blue"


def test_doubts_of_imported_rows_are_counted() -> None:
    found = lines(ORIGIN, cell(flags=("imported",), row={"warnings": ("grad_accum is missing",)}, num_runs=3))
    assert [line.found for line in found if "grad_accum" in line.found] == ["grad_accum is missing (3 runs)"]


def test_failed_runs_are_not_judged() -> None:
    judged = with_rows({"step_time_p50_sec": 1.0}, {"step_time_p50_sec": 9.0, "status": "crashed"})
    assert lines(TIMES, judged) == []


def test_a_clock_that_is_mostly_below_its_best_is_capped() -> None:
    run = long_run()
    held = {"gpu 0": tuple((float(second), 1_980.0 if second < 3 else 1_200.0) for second in range(20))}
    capped = replace(run, clock_mhz=held)
    clocks = [found for found in check((), runs=(run, capped)) if found.name == "clocks or power capped"]
    by_level = {found.level: found for found in clocks}
    assert by_level.keys() == {"ok", "warning"}
    assert "1,200 MHz in the median, 1,980 MHz at best" in by_level["warning"].found
    assert by_level["ok"].subject == "8 devices"


def test_every_wrong_line_of_a_whole_report_comes_with_advice() -> None:
    found = check(example_findings().cells)
    wrong = [line for line in found if line.level != "ok" and not line.subject.endswith(" more")]
    assert wrong and all(line.found and line.advice for line in wrong)
    assert not any("nan" in line.found or str(math.inf) in line.found for line in found)


def test_who_ran_on_cpus_is_not_sent_to_a_cluster_file() -> None:
    for judged in (cell(vendor="cpu"), cell(vendor="nvidia", flags=("simulated",))):
        found = only(THROUGHPUT, judged)
        assert (found.level, found.advice) == (
            "unknown", "A CPU has no peak to compare with: nothing is to be done."
        )  # fmt: skip


def test_the_baseline_of_one_device_is_a_device() -> None:
    poor = only("scaling efficiency sane", cell(scaling_efficiency_pct=20.0, scaling_baseline_world_size=1))
    assert poor.found.startswith("20.0 % of 1 device's throughput")
    steep = only("scaling efficiency sane", cell(scaling_efficiency_pct=130.0, scaling_baseline_world_size=1))
    assert "repeat the baseline of 1 device first" in steep.advice


def test_an_imported_device_is_not_named_in_a_cluster_file() -> None:
    found = only(THROUGHPUT, cell(flags=("imported",)))
    assert "import again" in found.advice
    assert "cluster.yaml" in only(THROUGHPUT, cell()).advice
