"""The row that a run leaves: its fields, its arithmetic, its size, and what is read back from it."""

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.fingerprint.merging import merged
from jobs.sweeps.rows.metrics import METRICS
from jobs.training.task.job import Recipe
from jobs.training.task.measurement import (
    Failure,
    Measurement,
    NoProfile,
    Operation,
    RankProfile,
    RankSummary,
)
from reporting.results.records import RecordError, RunRecord, read_record
from reporting.results.result_rows import row_of
from reporting.results.rows import row_from
from tests.unit.builders import (
    CRASH,
    environment,
    group,
    measurement,
    profile,
    rank_summary,
    record,
    run_of,
    sweep,
)

MAX_BYTES = 13_000
MAX_BYTES_PER_RANK = 90
FACTS = merged([{f"library number {number}": "a version of some length" for number in range(100)}])
BUSY = {f"NCCL_VARIABLE_NUMBER_{number}": "a value of some length, a path maybe" for number in range(30)}
# What the two older formats have, and what ours adds.
FIELDS = set(
    re.findall(
        r"\w+",
        """
        strategy world_size rank seq_len tier steps per_device_batch grad_accum tokens_per_sec
        mean_step_time_sec mean_loss peak_vram_gb h2d_gbps_per_gpu
        platform gpu_info training_config performance_metrics memory_metrics raw_step_times per_rank
        schema_version sweep cell_id run_id repeat attempt group vendor model precision status error
        timing_unit warmup_steps mfu flops_formula peak_flops peak_flops_source device_memory_bytes
        environment scaling_efficiency_pct
        """,
    )
)


def measured_row(
    *, num_ranks: int = 1, spec_changes: dict[str, Any] | None = None, **changes: Any
) -> RunRecord:
    spec = sweep(**{"axes": {"world_size": [num_ranks]}, **(spec_changes or {})})
    run = run_of(spec)
    return record(spec, run, measurement(run.run_id, num_ranks=num_ranks, **changes), group(devices=(64,)))


def failed_row(failure: Failure = CRASH) -> RunRecord:
    spec = sweep()
    return record(spec, run_of(spec), failure)


def on_device(rank: int, **changes: Any) -> RankSummary:
    memory = {
        "peak_allocated_bytes": 20_000_000_000 + rank,
        "peak_reserved_bytes": 24_000_000_000 + rank,
        "allocator_retries": 1,
        "device_memory_bytes": 85_899_345_920,
        "device_used_bytes": 30_000_000_000 + rank,
    }
    name = "NVIDIA H100 80GB HBM3"
    return rank_summary(rank, device=name, device_id=f"GPU-{rank}", **{**memory, **changes})


ON_H100 = environment(
    platform="cuda", device="NVIDIA H100 80GB HBM3", driver="570.1", collectives="nccl 2.27"
)


@pytest.mark.parametrize("row", [measured_row(), failed_row()], ids=["measured", "failed"])
def test_a_row_has_every_field_that_the_interface_promises(row: RunRecord) -> None:
    assert set(FIELDS) <= set(json.loads(row.to_json()))


@pytest.mark.parametrize(
    "row",
    [
        measured_row(num_ranks=4),
        measured_row(ranks=(on_device(0),), environment=ON_H100),
        failed_row(),
        failed_row(
            Failure(status="oom", reason="too much", phase="setup", wanted_bytes=5, log_tail=("a", "b"))
        ),
    ],
    ids=["cpu", "gpu", "crash", "oom"],
)
def test_what_was_written_is_read_back_equal(row: RunRecord) -> None:
    assert read_record(row.to_json()) == row


@given(
    num_steps=st.integers(1, 200),
    step_s=st.floats(1e-4, 100),
    world_size=st.sampled_from([1, 2, 8, 64]),
    grad_accum=st.integers(1, 64),
)
def test_throughput_times_step_time_is_the_tokens_of_a_step(
    num_steps: int, step_s: float, world_size: int, grad_accum: int
) -> None:
    row = measured_row(
        num_ranks=world_size, spec_changes={"grad_accum": grad_accum}, num_steps=num_steps, step_s=step_s
    )
    assert row.tokens_per_sec
    assert row.mean_step_time_sec
    assert row.performance_metrics
    tokens_per_step = world_size * grad_accum * 64
    assert row.training_config.tokens_per_step == tokens_per_step
    assert row.tokens_per_sec * row.mean_step_time_sec == pytest.approx(tokens_per_step, rel=1e-12)
    assert row.performance_metrics.micro_step_time_sec * grad_accum == pytest.approx(row.mean_step_time_sec)
    assert row.performance_metrics.tokens_per_sec_per_device * world_size == pytest.approx(row.tokens_per_sec)


def test_the_time_of_a_window_is_the_slowest_ranks_total_and_not_the_sum_of_maxima() -> None:
    row = measured_row(num_ranks=2, step_times_s=(0.2, 0.2), losses=(6.0, 5.0), window_s=0.3)
    assert row.mean_step_time_sec == 0.15
    assert row.raw_step_times == (0.2, 0.2)
    assert row.performance_metrics
    assert row.performance_metrics.window_sec == 0.3


def test_losses_are_summarised_over_the_window() -> None:
    row = measured_row(num_steps=20, losses=tuple(float(20 - step) for step in range(20)))
    assert row.mean_loss == 10.5
    assert row.loss_metrics
    assert (row.loss_metrics.first, row.loss_metrics.last, row.loss_metrics.median_last_tenth) == (20, 1, 1.5)


def test_on_a_cpu_what_only_an_accelerator_has_is_null() -> None:
    row = measured_row(num_ranks=2)
    assert row.memory_metrics
    assert (row.peak_vram_gb, row.mfu, row.peak_flops, row.h2d_gbps_per_gpu) == (None, None, None, None)
    assert row.memory_metrics.peak_allocated_bytes_max is None
    assert row.memory_metrics.host_peak_growth_bytes_max == 250_000_001


def test_memory_is_the_ranks_largest_and_smallest_peak() -> None:
    row = measured_row(num_ranks=2, ranks=(on_device(0), on_device(1)), environment=ON_H100)
    assert row.memory_metrics
    assert row.peak_vram_gb == 20.000000001
    assert row.memory_metrics.peak_allocated_bytes_min == 20_000_000_000
    assert row.memory_metrics.allocator_retries == 2
    assert row.device_memory_bytes == 85_899_345_920


def test_mfu_is_against_the_peak_of_the_device_that_ran() -> None:
    row = measured_row(
        spec_changes={"models": ["llama-3.1-8b"], "axes": {"seq_len": [8192], "precision": ["bf16"]}},
        step_s=8192 / 5762,
        ranks=(on_device(0),),
        environment=ON_H100,
    )
    assert row.mfu == pytest.approx(0.3374, abs=5e-5)
    assert (row.peak_flops, row.peak_flops_source) == (989e12, "NVIDIA H100 data sheet, dense")


@pytest.mark.parametrize(
    ("device", "fp8_peak", "bf16_peak"),
    [("NVIDIA H100 80GB HBM3", 1979e12, 989e12), ("AMD Instinct MI350X", None, 2300e12)],
)
def test_mfu_of_fp8_is_against_its_own_peak_and_besides_against_that_of_bf16(
    device: str, fp8_peak: float | None, bf16_peak: float
) -> None:
    axes = {"precision": ["bf16"], "fp8": ["rowwise"], "activation_checkpointing": ["full"]}
    row = measured_row(spec_changes={"axes": axes}, environment=environment(platform="cuda", device=device))
    assert row.peak_flops == fp8_peak
    assert (row.mfu is None, row.hfu is None) == (fp8_peak is None, fp8_peak is None)
    achieved = row.tokens_per_sec / row.world_size * row.flops_per_token if row.tokens_per_sec else 0.0
    assert row.mfu_of_bf16_peak == pytest.approx(achieved / bf16_peak)
    assert not fp8_peak or row.mfu == pytest.approx(achieved / fp8_peak)


@pytest.mark.parametrize("device", ["NVIDIA GH200 480GB", "AMD Radeon Graphics"])
def test_an_unknown_device_has_no_mfu(device: str) -> None:
    row = measured_row(
        spec_changes={"axes": {"precision": ["bf16"]}},
        environment=environment(platform="cuda", device=device),
    )
    assert (row.mfu, row.peak_flops, row.peak_flops_source) == (None, None, None)


def test_copies_to_the_device_are_bytes_over_time() -> None:
    row = measured_row(h2d_bytes_per_step=2_000_000, h2d_s_per_step=0.001)
    assert row.h2d_gbps_per_gpu == pytest.approx(2.0)


def test_distinct_devices_are_counted_over_nodes() -> None:
    ranks = tuple(rank_summary(rank, node=f"node-{rank // 2}", device_id=f"{rank % 2}") for rank in range(4))
    row = measured_row(num_ranks=4, ranks=ranks)
    assert row.gpu_info
    assert row.gpu_info.count == 4


def test_a_failed_row_says_why_and_has_no_numbers() -> None:
    row = failed_row(
        Failure(status="oom", reason="no more", phase="window", wanted_bytes=7, ranks=(1,), log_tail=("x",))
    )
    assert row.error
    assert (row.status, row.error.phase, row.error.wanted_bytes, row.error.ranks) == (
        "oom",
        "window",
        7,
        (1,),
    )
    assert (row.tokens_per_sec, row.steps, row.mfu, row.raw_step_times) == (None, None, None, ())


def test_a_metric_that_comes_to_no_number_is_null_and_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def divides_by_zero(recipe: Recipe, measured: Measurement) -> float | None:
        return 1 / (len(measured.ranks) - 1)

    monkeypatch.setitem(METRICS, "divides", divides_by_zero)
    monkeypatch.setitem(METRICS, "overflows", lambda recipe, measured: float("inf"))
    monkeypatch.setitem(METRICS, "is_nan", lambda recipe, measured: float("nan"))
    monkeypatch.setitem(METRICS, "steps", lambda recipe, measured: len(measured.losses))
    row = measured_row()
    found = {name: row.metrics[name] for name in ("divides", "overflows", "is_nan", "steps")}
    assert found == {"divides": None, "overflows": None, "is_nan": None, "steps": 10}
    assert json.loads(row.to_json())


def test_a_row_never_holds_a_number_that_json_does_not_know() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(measured_row(), mfu=float("nan")).to_json()


def test_a_measured_row_of_a_hundred_steps_and_64_ranks_is_small() -> None:
    row = measured_row(
        num_ranks=64,
        spec_changes={"name": "n" * 64, "models": ["mistral-7b-v0.1"]},
        step_times_s=tuple(0.123456789 + step / 1e5 for step in range(100)),
        losses=tuple(6.123456789123 - step / 100 for step in range(100)),
        ranks=tuple(
            on_device(rank, node="worker-17.a-long.domain.name.example", p50_s=1 / 7) for rank in range(64)
        ),
        environment=environment(device="NVIDIA H100 80GB HBM3", variables=BUSY, fingerprint=FACTS),
    )
    assert len(row.raw_step_times) == 100
    assert len(row.to_json()) <= MAX_BYTES


@pytest.mark.parametrize("character", ["x", "\u2588", "\x1b", "\U0001f525", '"'])
def test_a_failed_row_with_the_longest_log_is_small_and_keeps_its_newest_lines(character: str) -> None:
    lines = tuple(f"{number} {character * 5000}" for number in range(100))
    row = failed_row(
        Failure(status="crash", reason=character * 100_000, ranks=tuple(range(8)), log_tail=lines)
    )
    assert len(row.to_json()) <= MAX_BYTES
    assert row.error
    assert [line.split()[0] for line in row.error.log_tail] == [str(number) for number in range(80, 100)]
    assert row.error.reason.startswith(character)


LONG = tuple(
    Operation(
        name=f"void \x1b[31mkernel_{number}" * 200, share=1 / 7, calls_per_step=1 / 3, seconds_per_step=1e-3
    )
    for number in range(10)
)


@pytest.mark.parametrize("world_size", [1, 8])
def test_a_profiled_row_of_a_hundred_steps_stays_small_whatever_its_operations_are_called(
    world_size: int,
) -> None:
    found = profile(num_ranks=world_size, basis="device", operations=LONG)
    row = measured_row(num_ranks=world_size, num_steps=100, profile=found)
    assert len(row.to_json()) <= MAX_BYTES
    assert row.profile
    assert [name[:12] for name in row.profile.operation_names] == [one.name[:12] for one in LONG]
    failed = measured_row(num_steps=100, profile=NoProfile(reason="\x1b" * 9_000))
    assert len(failed.to_json()) <= MAX_BYTES
    assert failed.profile and failed.profile.problem


def _profiled_row(num_ranks: int) -> RunRecord:
    """Each number has all digits that are stored of it."""
    drawn = Random(1)
    ranks = tuple(
        on_device(
            rank,
            node="worker-17.a-long.domain.name.example",
            total_s=10 + drawn.random(),
            p50_s=drawn.random(),
            p95_s=drawn.random(),
            max_s=drawn.random(),
            mean_loss=10 + drawn.random(),
            host_peak_growth_bytes=5_000_000_000 + rank,
        )
        for rank in range(num_ranks)
    )
    return measured_row(
        num_ranks=num_ranks,
        spec_changes={"name": "n" * 64, "models": ["mistral-7b-v0.1"]},
        step_times_s=tuple(0.1 + drawn.random() for _ in range(100)),
        losses=tuple(6 + drawn.random() for _ in range(100)),
        ranks=ranks,
        environment=environment(device="NVIDIA H100 80GB HBM3", variables=BUSY, fingerprint=FACTS),
        profile=profile(num_ranks=num_ranks, basis="device", operations=LONG),
    )


def test_a_profiled_row_of_32_ranks_is_small_and_each_further_rank_adds_little() -> None:
    of_32, of_256 = (len(_profiled_row(num_ranks).to_json()) for num_ranks in (32, 256))
    assert of_32 <= MAX_BYTES
    assert (of_256 - of_32) / (256 - 32) <= MAX_BYTES_PER_RANK


def test_a_profiles_shares_are_means_over_ranks_and_its_step_is_the_slowest_ones() -> None:
    ranks = (
        RankProfile(step_s=0.1, communication=0.5, exposed_communication=0.1, data_wait=0.02, idle=0.2),
        RankProfile(step_s=0.3, communication=0.7, exposed_communication=0.5, data_wait=0.04, idle=0.4),
    )
    row = measured_row(num_ranks=2, profile=profile(ranks=ranks)).to_json()
    found = row_of(row, "sweeps/trial/runs/a/result.json")
    assert (found.profile_step_sec, found.profile_communication_share) == (0.3, 0.6)
    assert found.profile_exposed_communication_share == pytest.approx(0.3)
    assert found.profile_exposed_communication_share_min == 0.1
    assert found.profile_exposed_communication_share_max == 0.5
    assert (found.profile_data_wait_share, found.profile_device_idle_share) == (0.03, 0.3)
    assert found.profile_operation_names == ("aten::mm", "gloo:all_reduce")
    assert (found.profile_operation_calls, found.profile_operation_sec) == ((87, 2), (0.06, 0.036))
    assert read_record(row).to_json() == row


def test_a_run_that_was_not_profiled_has_no_profile() -> None:
    row = measured_row()
    found = row_of(row.to_json(), "a")
    assert row.profile is None
    assert (found.profile_steps, found.profile_problem, found.profile_operation_names) == (None, None, ())


@pytest.mark.parametrize(
    "profile",
    [{"operation_names": [1]}, {"operation_shares": ["a"]}, {"trace": 5}, {"step_sec": "slow"}, [], "a"],
    ids=str,
)
def test_a_profile_that_is_none_is_no_result(profile: object) -> None:
    found = json.loads(measured_row().to_json())
    found["profile"] = profile
    with pytest.raises(RecordError):
        row_of(json.dumps(found).encode(), "a")


def test_keys_that_this_version_does_not_know_are_left_out() -> None:
    row = measured_row()
    found = json.loads(row.to_json())
    found["goodput"] = 0.99
    found["environment"]["bios"] = "F3"
    found["per_rank"]["watts"] = [400]
    assert read_record(json.dumps(found).encode()) == row


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (measured_row().to_json()[:-20], "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "schema_version None, expected 1"),
        (b"{}", "schema_version None, expected 1"),
        (b'{"schema_version": 2}', "schema_version 2, expected 1"),
        (b'{"schema_version": 1}', "not a run's result"),
        (b'{"schema_version": 1, "per_rank": 3}', "not a run's result"),
    ],
    ids=[
        "empty",
        "truncated",
        "binary",
        "a list",
        "no version",
        "newer",
        "nothing else",
        "wrong kind",
    ],
)
def test_what_is_no_row_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        read_record(data)


@pytest.mark.parametrize("name", ["cell_id", "status", "metrics", "training_config"])
def test_a_row_that_lacks_a_field_is_refused(name: str) -> None:
    found = json.loads(measured_row().to_json())
    del found[name]
    with pytest.raises(RecordError, match=name):
        read_record(json.dumps(found).encode())


def test_a_simulated_group_says_so_in_every_row() -> None:
    spec = sweep(groups=["amd"])
    run = run_of(spec)
    there = group("amd", vendor="amd", simulated=True)
    row = record(spec, run, measurement(run.run_id), there)
    assert (row.vendor, row.simulated) == ("amd", True)


def test_fp8_on_a_cpu_is_simulated_and_bf16_beside_it_is_not() -> None:
    for fp8, is_simulated in (("none", False), ("rowwise", True)):
        spec = sweep(axes={"precision": ["bf16"], "fp8": [fp8]})
        run = run_of(spec)
        written = record(spec, run, measurement(run.run_id))
        read = row_of(written.to_json(), "somewhere")
        assert (written.simulated, read.simulated, read.is_emulated) == (is_simulated,) * 3
        assert read.product_dtype == ("fp8" if is_simulated else "bf16")


@pytest.mark.parametrize("simulated", [True, False])
def test_fp8_of_a_group_with_devices_is_simulated_only_if_the_group_is(simulated: bool) -> None:
    spec = sweep(groups=["amd"], axes={"precision": ["bf16"], "fp8": ["rowwise"]})
    run = run_of(spec)
    there = group("amd", vendor="amd", simulated=simulated)
    row = row_of(record(spec, run, measurement(run.run_id), there).to_json(), "somewhere")
    assert (row.simulated, row.is_emulated) == (simulated, False)


def test_a_row_of_a_group_that_is_not_there_knows_no_vendor() -> None:
    spec = sweep(groups=["amd"])
    assert record(spec, run_of(spec), CRASH, group("local")).vendor is None


@pytest.mark.parametrize(
    "name", ["world_size", "seq_len", "per_device_batch", "grad_accum", "tokens_per_step"]
)
def test_a_size_below_zero_is_refused(name: str) -> None:
    with pytest.raises(RecordError, match=f"{name} is -1, which can't be"):
        row_from({"source": "x", name: -1})


def test_energy_below_zero_is_refused_since_it_would_be_earned() -> None:
    with pytest.raises(RecordError, match=r"energy_joules_per_token is -5\.0"):
        row_from({"source": "x", "energy_joules_per_token": -5.0})
