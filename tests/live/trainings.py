"""Small trainings for tests: recipes, and what a rank sees when it runs them."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.training.data.synthetic import make_batches
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.job import OptimizerConfig, Precision, Recipe, Strategy
from jobs.training.task.presets import preset

CPU = torch.device("cpu")
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a training went, step by step; losses are means over the ranks."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]


def recipe_for(
    strategy: Strategy,
    *,
    world_size: int,
    model: str = "llama-tiny",
    precision: Precision = "fp32",
    micro_batch: int = 1,
    grad_accum: int = 2,
) -> Recipe:
    return Recipe(
        model=preset(model),
        strategy=strategy,
        world_size=world_size,
        seq_len=32,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        precision=precision,
        seed=1,
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=5),
    )


def train_each(num_steps: Mapping[Recipe, int]) -> dict[Recipe, Course]:
    """Runs on a rank: one engine after the other in this process."""
    return {recipe: train(recipe, number) for recipe, number in num_steps.items()}


def train(recipe: Recipe, num_steps: int) -> Course:
    """Runs on a rank."""
    engine = build(recipe, CPU)
    batches = make_batches(recipe, dist.get_rank(), CPU)
    losses, grad_norms, learning_rates = [], [], []
    for step in range(num_steps):
        learning_rates.append(engine.learning_rate)
        losses.append(mean_over_ranks(train_step(engine, batches.load(step))))
        assert engine.grad_norm is not None
        grad_norms.append(float(engine.grad_norm))
    engine.close()
    return Course(losses=tuple(losses), grad_norms=tuple(grad_norms), learning_rates=tuple(learning_rates))


def held_bytes() -> int:
    """What all tensors in this process hold, whoever refers to them."""
    gc.collect()
    # Of the type only: to ask some lazy objects for their class makes them warn.
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = [
        getattr(tensor, "_local_tensor", tensor).untyped_storage()
        for tensor in tensors
        if tensor.device.type != "meta"
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def mean_over_ranks(loss: Tensor) -> float:
    total = loss.clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
