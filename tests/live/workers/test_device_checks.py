"""What the checks of ``make gpu`` are made of, as far as a CPU can run it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jobs.training.task.job import Recipe
from jobs.training.task.settings import Settings
from tests.bench import gpu
from tests.bench.gpu_table import Row, goals, speedup, table
from tests.gpu.apart import apart
from tests.gpu.here import CPU, nothing_here
from tests.gpu.measuring import ALL_READINGS, cell, larger_recipe, times, told_by
from tests.gpu.saves import blocked, difference, parted, round_trip_each, trained_each
from tests.gpu.trainings import Course, plain, train_each, with_settings
from tests.live.command_line import ROOT
from tests.unit.devices import ADDRESS, H100, MI300X

TOLD = {"LONGHAUL_TOLD": "1"}
pytestmark = pytest.mark.skipif(nothing_here() is None, reason="there is a device: `make gpu` checks it")


def test_without_a_device_one_line_says_so_and_all_is_well() -> None:
    for module in ("tests.gpu", "tests.bench.gpu"):
        done = subprocess.run(
            [sys.executable, "-m", module], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
        )
        (line,) = done.stdout.splitlines()
        assert "sees no NVIDIA or AMD device; nothing was" in line


# What it shows is used on devices alone.
@pytest.mark.soak
def test_courses_begin_with_the_same_values_under_each_strategy() -> None:
    recipes = [plain("ddp", "fp32"), plain("fsdp", "fp32"), plain("zero1", "fp32")]
    recipes.append(
        with_settings(recipes[0], Settings(activation_checkpointing="full", cross_entropy="chunked"))
    )
    recipes.append(with_settings(plain("ddp", "fp32"), Settings(attention="cudnn")))
    ours, *others, refused = apart(train_each, recipes, device=CPU)
    assert ours.kernel == "flash" and len(ours.losses) == 5
    assert [other.distance(ours) < 1e-5 for other in others] == [True] * 3
    assert refused.refused is not None and refused.refused.startswith("attention: cudnn can't be had")
    assert Course(losses=(1.0, 2.0)).distance(Course(losses=(1.5, 1.0))) == 1.0


# What it shows is used on devices alone.
@pytest.mark.soak
def test_states_of_two_processes_are_compared() -> None:
    recipe = replace(plain("ddp", "fp32"), deterministic=True)
    one, again = apart(trained_each, [recipe, replace(recipe, seed=2)], device=CPU, variables=TOLD)
    assert apart(_trained_if_told, recipe, device=CPU, variables=TOLD) == one != again
    assert TOLD.keys().isdisjoint(os.environ)


def _trained_if_told(recipe: Recipe, device: torch.device) -> str:
    assert os.environ.items() >= TOLD.items()
    return trained_each([recipe], device)[0]


@pytest.mark.soak
def test_a_round_trip_brings_back_what_was_saved() -> None:
    (found,) = apart(round_trip_each, [plain("zero2", "bf16")], device=CPU)
    assert found.is_equal and not found.is_pinned
    assert found.losses == found.losses_after_restoring
    assert found.num_bytes > 3 * 4 * plain("ddp", "bf16").model.num_parameters


@pytest.mark.soak
def test_a_run_of_two_attempts_is_bit_equal_and_one_of_other_samples_is_not(tmp_path: Path) -> None:
    recipe = plain("ddp", "fp32")
    assert apart(parted, tmp_path / "same", recipe, device=CPU) == "bit-equal at step 8"
    apart(parted, tmp_path / "other", replace(recipe, seed=2), device=CPU)
    stores = [tmp_path / name / "alone" for name in ("same", "other")]
    with pytest.raises(AssertionError, match="expected at most 1e-03"):
        difference(*stores)
    assert "not bit-equal" in difference(*stores, most=1e3)


@pytest.mark.soak
def test_saves_and_copies_are_timed_in_turn() -> None:
    found = apart(blocked, plain("ddp", "fp32"), device=CPU)
    assert len(found.saves_s) == len(found.copies_s) == 5
    assert found.ratio > 0 and found.bytes_per_s > 0


def test_windows_and_cells_are_measured() -> None:
    recipe = plain("ddp", "fp32")
    found = apart(times, recipe, device=CPU)
    assert 0 < found.by_events_s <= found.by_host_s
    measured = apart(cell, recipe, 3, device=CPU)
    assert len(measured.step_times_s) == 3


@pytest.mark.parametrize(("memory_gb", "model"), [(80, "llama-3.2-1b"), (16, "llama-mini")])
def test_the_model_fits_the_device(memory_gb: int, model: str) -> None:
    assert larger_recipe(memory_gb * 10**9).model.name == model


def test_a_reading_that_is_missing_has_the_question_that_was_refused() -> None:
    told = told_by(H100(), ADDRESS, is_amd=False)
    assert (told.missing, told.refused, told.nothing) == ([], {}, None)
    told = told_by(H100(refuse=("power",)), ADDRESS, is_amd=False)
    assert told.missing == ["power_watts"]
    assert told.refused == {"nvmlDeviceGetPowerUsage": "NVMLError: Not Supported"}
    assert told_by(MI300X(), ADDRESS, is_amd=True).values.keys() == ALL_READINGS
    away = told_by(H100(refuse=("nvmlDeviceGetHandleByUUID",)), ADDRESS, is_amd=False)
    assert away.nothing == "NVML can't report the device: Not Supported"


def test_a_function_that_fails_or_dies_is_told() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        apart(_fails, device=CPU)
    with pytest.raises(AssertionError, match="_dies ended with 3 and said nothing"):
        apart(_dies, device=CPU)
    with pytest.raises(AssertionError, match="_fails was not done"):
        apart(_fails, device=CPU, deadline_s=0.1)


def _fails(device: torch.device) -> float:
    return 1 / 0


def _dies(device: torch.device) -> None:
    import os

    os._exit(3)


def test_the_table_has_a_row_for_each_way_and_goals_are_judged() -> None:
    rows = [
        Row(name="transformers", tokens_per_s=20_000, speedup=1.0, mfu=0.3, hfu=0.3, peak_bytes=60 * 10**9),
        Row(name="compiled, chunked", tokens_per_s=40_000, speedup=2.0, mfu=0.6, hfu=0.6, kernel="flash"),
        Row(name="compiled, fp8 rowwise", refused="fp8: rowwise can't be had here"),
    ]
    assert table(rows)[2:] == [
        "| transformers | 20,000 | 1.000x | 30.0 % | 30.0 % | 60.0 GB | – |",
        "| compiled, chunked | 40,000 | 2.000x | 60.0 % | 60.0 % | – | flash |",
        "| compiled, fp8 rowwise | can't be had: fp8: rowwise can't be had here | – | – | – | – | – |",
    ]
    assert {line.count("|") for line in table(rows)} == {8}
    mfu, fp8, saving = goals(rows, 1.05, None)
    assert (mfu.is_met, fp8.is_met, saving.is_met) == (True, False, True)
    assert mfu.line().endswith("0.600 (bound >= 0.50): met")
    assert fp8.line().endswith("nothing to judge (bound >= 1.20): missed")
    assert saving.line().endswith("1.050 (bound <= 1.10): met")
    assert [goal.is_met for goal in goals(rows[:1], 1.2, 1.2)] == [False, True, False]


def test_speedups_are_of_the_windows_of_each_turn() -> None:
    taken = {"ours": [1.0, 4.0, 1.0], "theirs": [2.0, 4.0, 3.0], "away": []}
    assert speedup(taken, "ours", "theirs") == 2.0
    assert speedup(taken, "away", "theirs") is None


@pytest.mark.parametrize("model", ["llama-tiny", "qwen-tiny"])
def test_all_ways_train_the_same_parameters_as_transformers_model(model: str) -> None:
    """Tied and untied."""
    recipe = gpu.recipe_for(model, 32, None, CPU)
    bench = gpu.bench_of(recipe, 1, CPU)
    theirs, ours = gpu.their_way(bench), gpu.our_way(bench, gpu.EAGER)
    losses = {way.name: float(way.loss(bench.ids, bench.labels)) for way in (theirs, ours) if way.loss}
    assert losses["transformers"] == pytest.approx(losses["eager"], abs=0.02)
    gradients = {}
    for way in (theirs, ours):
        assert way.loss is not None
        way.loss(bench.ids, bench.labels).backward()
        gradients[way.name] = {name: one.grad is not None for name, one in bench.parameters.items()}
        for one in bench.parameters.values():
            one.grad = None
    assert all(all(found.values()) for found in gradients.values())


@pytest.mark.soak
def test_the_bench_runs_on_a_cpu_and_judges_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--model", "llama-tiny", "--seq-len", "32", "--rounds", "1"]
    assert gpu.main([*words, "--ways", "eager", "full"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert ", cpu, torch " in head and "llama-tiny, bf16, 1 x 32 tokens" in head
    assert [line.split(" | ")[0] for line in lines[2:-1]] == ["| transformers", "| eager", "| full"]
    assert lines[-1] == "on a CPU nothing is judged"


# What it shows is used on devices alone.
@pytest.mark.soak
def test_a_way_that_runs_out_of_memory_says_so_and_the_others_go_on() -> None:
    bench = gpu.bench_of(gpu.recipe_for("llama-tiny", 32, None, CPU), 1, CPU)
    ours, greedy = gpu.our_way(bench, gpu.EAGER), gpu.Way(name="greedy", loss=_out_of_memory)
    taken = gpu.take_turns(bench, [greedy, ours])
    assert gpu.row_of(bench, greedy, taken).refused == "out of memory: there is none"
    assert gpu.row_of(bench, ours, taken).tokens_per_s > 0


def _out_of_memory(_ids: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("there is none\nand more words")
