"""What is made of the spans that a profiler recorded: shares of the time, and operations."""

import os
import random
import time

import pytest

from jobs.training.benchmark.spans import (
    DATA_WAIT,
    MOST_OPERATIONS,
    PROFILE,
    NothingRecorded,
    Span,
    SpanKind,
    sum_up,
)
from jobs.training.task.measurement import Operation, RankProfile

MAIN, GLOO, OTHER_GLOO, STREAM = 1, 2, 3, 7
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def window(length: int = 100) -> Span:
    return Span(PROFILE, "annotation", MAIN, 0, length)


def operator(name: str, start: int, end: int, lane: int = MAIN) -> Span:
    return Span(name, "operator", lane, start, end)


def annotation(name: str, start: int, end: int, lane: int = MAIN) -> Span:
    return Span(name, "annotation", lane, start, end)


def on_device(name: str, start: int, end: int, kind: SpanKind = "kernel") -> Span:
    return Span(name, kind, STREAM, start, end)


def on_cpu(*spans: Span, num_steps: int = 1) -> tuple[RankProfile, dict[str, Operation]]:
    shares, operations = sum_up([window(), *spans], "cpu", num_steps)
    return shares, {operation.name: operation for operation in operations}


def test_on_a_device_exposed_communication_is_that_during_which_no_other_kernel_runs() -> None:
    gemm, copied = on_device("gemm", 0, 50), on_device("Memcpy HtoD", 70, 80, "copy")
    shares, operations = sum_up([window(), gemm, on_device(ALL_REDUCE, 40, 75), copied], "device", 2)
    assert (shares.communication, shares.exposed_communication) == pytest.approx((0.35, 0.25))
    assert shares.idle == pytest.approx(0.20)
    assert shares.step_s == pytest.approx(50e-9)
    assert operations[0] == Operation(name="gemm", share=0.5, calls_per_step=0.5, seconds_per_step=25e-9)
    assert [one.name for one in operations] == ["gemm", ALL_REDUCE, "Memcpy HtoD"]


@pytest.mark.parametrize(
    "name", [ALL_REDUCE, "ncclKernel_Generic", "void rcclKernel<float>()", "mscclKernel"]
)
def test_the_collectives_of_both_vendors_are_known_by_their_kernels_names(name: str) -> None:
    shares, _ = sum_up([window(), on_device("gemm", 0, 10), on_device(name, 50, 60)], "device", 1)
    assert shares.exposed_communication == pytest.approx(0.1)


def test_what_the_host_does_makes_no_device_busy() -> None:
    spans = [window(), operator("aten::mm", 0, 100), on_device("gemm", 40, 50)]
    assert sum_up(spans, "device", 1)[0].idle == pytest.approx(0.9)


def test_on_a_cpu_collectives_are_gloos_tasks_and_overlapping_ones_count_once() -> None:
    tasks = [annotation("gloo:all_gather", 0, 40, GLOO), annotation("gloo:all_gather", 20, 60, OTHER_GLOO)]
    shares, operations = on_cpu(operator("aten::mm", 50, 90), *tasks)
    assert (shares.communication, shares.exposed_communication) == pytest.approx((0.6, 0.5))
    assert shares.idle is None
    assert operations["gloo:all_gather"].share == pytest.approx(0.8)


@pytest.mark.parametrize(
    "waiting",
    [
        operator("c10d::allreduce_", 0, 90),
        operator("_c10d_functional::wait_tensor", 0, 90),
        operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 90),
        operator("torch::autograd::AccumulateGrad", 0, 90),
        operator("PreBackwardFunctionForModuleBackward", 0, 90),
        annotation("FSDP::post_backward_reduce", 0, 90),
        operator("aten::view", 10, 80, GLOO),
    ],
    ids=lambda span: span.name,
)
def test_what_waits_for_a_collective_does_not_compute(waiting: Span) -> None:
    shares, _ = on_cpu(waiting, annotation("gloo:all_reduce", 0, 90, GLOO), operator("aten::mm", 95, 99))
    assert shares.exposed_communication == pytest.approx(0.9)


def test_an_operator_inside_of_what_waits_computes() -> None:
    hook = operator("autograd::engine::evaluate_function: MmBackward0", 0, 90)
    shares, _ = on_cpu(hook, operator("aten::mm", 30, 50), annotation("gloo:all_reduce", 0, 90, GLOO))
    assert shares.exposed_communication == pytest.approx(0.7)


def test_an_operators_time_is_its_own_without_that_of_the_operators_it_calls() -> None:
    _, operations = on_cpu(operator("aten::linear", 0, 60), operator("aten::addmm", 10, 50), num_steps=2)
    assert operations["aten::linear"].share == pytest.approx(0.2)
    assert operations["aten::addmm"].share == pytest.approx(0.4)
    assert operations["aten::addmm"].calls_per_step == 0.5


def test_a_compiled_graph_computes_and_is_called_so() -> None:
    graph = operator("## Call CompiledFxGraph fizdr77cxcoe6e2yshhrdohwnv5akqou ##", 0, 80)
    _, operations = on_cpu(operator("CompiledFunction", 0, 90), graph, operator("aten::mm", 10, 20))
    assert operations["compiled graph fizdr77cxcoe"].share == pytest.approx(0.7)
    assert operations["compiled graph fizdr77cxcoe"].calls_per_step == 1


def test_data_wait_is_the_hosts_time_to_get_batches() -> None:
    waits = [annotation(DATA_WAIT, 0, 5), annotation(DATA_WAIT, 50, 60)]
    assert on_cpu(operator("aten::mm", 10, 20), *waits)[0].data_wait == pytest.approx(0.15)


def test_what_lies_outside_of_the_profiled_steps_does_not_count() -> None:
    before, across = annotation("gloo:barrier", -50, 0, GLOO), annotation("gloo:all_reduce", 90, 400, GLOO)
    late = [operator("aten::backward", 50, 300), operator("aten::add", 60, 200)]
    shares, operations = on_cpu(operator("aten::mm", 10, 20), *late, before, across)
    assert shares.communication == pytest.approx(0.1)
    assert "gloo:barrier" not in operations
    assert operations["gloo:all_reduce"].share == pytest.approx(0.1)
    assert operations["gloo:all_reduce"].seconds_per_step == pytest.approx(10e-9)
    assert operations["aten::backward"].share == pytest.approx(0.1)


def test_the_longest_operations_come_first_and_the_rest_is_left_out() -> None:
    many = [operator(f"aten::op{number}", 3 * number, 3 * number + 1 + number % 2) for number in range(30)]
    _, operations = on_cpu(*many)
    shares = [operation.share for operation in operations.values()]
    assert len(shares) == MOST_OPERATIONS
    assert shares == sorted(shares, reverse=True)
    assert min(shares) == pytest.approx(0.02)


@pytest.mark.parametrize("spans", [[], [window()], [window(), operator("aten::mm", 0, 9)], [window(0)]])
def test_a_profiler_that_saw_nothing_of_the_device_is_no_profile(spans: list[Span]) -> None:
    with pytest.raises(NothingRecorded):
        sum_up(spans, "device", 1)


def test_shares_are_those_of_counting_each_moment() -> None:
    seed = int(os.environ.get("LONGHAUL_SEED", time.time_ns() % 10_000))
    dice = random.Random(seed)
    for _ in range(200):
        spans = [
            on_device(dice.choice(["gemm", "add", ALL_REDUCE]), start, start + dice.randint(1, 30))
            for start in (dice.randint(-20, 110) for _ in range(dice.randint(1, 12)))
        ]
        spans.append(on_device("gemm", 0, 1))
        shares, _ = sum_up([window(), *spans], "device", 1)
        running = [{span.name for span in spans if span.start_ns <= now < span.end_ns} for now in range(100)]
        told = (shares.communication, shares.exposed_communication, shares.idle)
        assert told == pytest.approx(
            (
                sum(ALL_REDUCE in names for names in running) / 100,
                sum(names == {ALL_REDUCE} for names in running) / 100,
                sum(not names for names in running) / 100,
            )
        ), f"LONGHAUL_SEED={seed}"


def test_spans_that_overlap_on_one_thread_cover_each_moment_once() -> None:
    spans = [("aten::a", 0, 50), ("aten::b", 30, 80), ("aten::c", 60, 70), ("aten::d", 85, 95)]
    _, operations = on_cpu(*(operator(*span) for span in spans))
    shares = {name: operation.share for name, operation in operations.items()}
    assert shares == pytest.approx({"aten::a": 0.3, "aten::b": 0.4, "aten::c": 0.1, "aten::d": 0.1})
