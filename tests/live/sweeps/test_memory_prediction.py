"""What is predicted of a rank's memory is what it takes: peaks of real processes, on gloo.

``pytest -s`` shows every kind of memory of every case beside what was measured.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import get_args

import pytest
import torch
import torch.distributed as dist

from jobs.sweeps.memory_forecast import MemoryPrediction, predict_memory
from jobs.training.benchmark.feed import BatchFeed
from jobs.training.device import host_memory
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import preset
from jobs.training.task.settings import Checkpointing, CrossEntropy, Fp8
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES

CPU = torch.device("cpu")
MODELS = (
    "llama-mini",
    # Families differ by little, and each case takes a fresh pair of processes.
    pytest.param("qwen-mini", marks=pytest.mark.soak),
    pytest.param("mistral-mini", marks=pytest.mark.soak),
)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# The third step is the first in which all is there that will ever be: ddp renews its buckets in the second.
NUM_STEPS = 3
DEADLINE_S = 600.0


def recipe_for(
    model: str, strategy: Strategy, *, grad_accum: int = 1, precision: Precision = "fp32", seq_len: int
) -> Recipe:
    return Recipe(
        model=preset(model),
        strategy=strategy,
        world_size=2,
        seq_len=seq_len,
        micro_batch=1,
        grad_accum=grad_accum,
        precision=precision,
        seed=0,
        optimizer=OptimizerConfig(),
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_grows_by_what_was_predicted(strategy: Strategy, model: str, tmp_path: Path) -> None:
    recipe = recipe_for(model, strategy, seq_len=384)
    growth = max(
        run_ranks(grow, recipe, num_ranks=2, tmp_path=tmp_path, deadline_s=DEADLINE_S, from_scratch=True)
    )
    predicted = predict_memory(recipe, on_cpu=True)
    print(row(recipe, predicted, growth))
    assert predicted.total == pytest.approx(growth, rel=0.25)


@pytest.mark.soak
def test_a_grid_of_cells_is_forecast_within_a_tenth(tmp_path: Path) -> None:
    """Every strategy and precision with what exchanges time for memory; half of it in another family too."""
    kept = (("none", "whole"), ("full", "whole"), ("full", "chunked"), ("selective", "chunked"))
    cells = [*product(["llama-mini"], STRATEGIES, PRECISIONS, kept)]
    cells += product(["qwen-mini"], ("ddp", "zero3"), PRECISIONS, kept)
    recipes = [
        replace(
            recipe_for(model, strategy, precision=precision, seq_len=1024),
            activation_checkpointing=mode,
            cross_entropy=loss,
        )
        for model, strategy, precision, (mode, loss) in cells
    ]
    assert len(recipes) >= 40
    assert largest_error(recipes, tmp_path) <= 0.1


@pytest.mark.soak
def test_fp8_is_forecast_within_a_tenth(tmp_path: Path) -> None:
    """On a CPU, where torchao emulates it."""
    strategies: tuple[Strategy, ...] = ("ddp", "fsdp")
    ways: tuple[Fp8, ...] = ("tensorwise", "rowwise")
    kept: tuple[tuple[Checkpointing, CrossEntropy], ...] = (("none", "whole"), ("full", "chunked"))
    recipes = [
        replace(
            recipe_for("llama-mini", strategy, precision="bf16", seq_len=1024),
            fp8=how,
            activation_checkpointing=mode,
            cross_entropy=loss,
        )
        for strategy, how, (mode, loss) in product(strategies, ways, kept)
    ]
    assert largest_error(recipes, tmp_path) <= 0.1


def largest_error(recipes: Sequence[Recipe], tmp_path: Path) -> float:
    errors = []
    for recipe in recipes:
        growth = max(
            run_ranks(grow, recipe, num_ranks=2, tmp_path=tmp_path, deadline_s=DEADLINE_S, from_scratch=True)
        )
        predicted = predict_memory(recipe, on_cpu=True)
        print(row(recipe, predicted, growth))
        errors.append(abs(predicted.total / growth - 1))
    print(f"{len(errors)} cells: error {median(errors):.1%} in the median, {max(errors):.1%} at most")
    return max(errors)


def grow(recipe: Recipe) -> int:
    """Runs on a rank that never trained before, as a run's worker does."""
    host_memory.return_large_pieces()
    return train(recipe)


def train(recipe: Recipe) -> int:
    """Runs on a rank: by how many bytes its peak was above where it started."""
    before = host_memory.reset_peak()
    engine = build(recipe, CPU)
    feed = BatchFeed(recipe, dist.get_rank(), CPU)
    for step in range(NUM_STEPS):
        train_step(engine, feed.of_step(step))
    growth = host_memory.peak_bytes() - before
    engine.close()
    return growth


def row(recipe: Recipe, predicted: MemoryPrediction, growth: int) -> str:
    kinds = "  ".join(
        f"{kind.name} {getattr(predicted, kind.name) / 1e6:.0f}" for kind in fields(MemoryPrediction)
    )
    return (
        f"\n{recipe.model.name} {recipe.strategy} {recipe.precision} x{recipe.grad_accum} "
        f"{recipe.activation_checkpointing} {recipe.cross_entropy} fp8 {recipe.fp8} (MB): {kinds}"
        f"  total {predicted.total / 1e6:.0f}  measured {growth / 1e6:.0f}"
        f"  predicted/measured {predicted.total / growth:.2f}"
        f"  without overhead {(predicted.total - predicted.overhead) / growth:.2f}"
    )
