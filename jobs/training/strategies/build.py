"""Builds a recipe's engine. Imports only the strategy that the recipe asks for."""

from importlib import import_module
from typing import assert_never

import torch

from jobs.training.device import repeating
from jobs.training.models import attention, compiling, fp8
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.contract import Engine
from jobs.training.task.job import Recipe, Strategy


def build(recipe: Recipe, device: torch.device) -> Engine:
    """The engine of ``recipe`` on this rank; the default process group must be up."""
    repeating.prepare(recipe.deterministic)
    if recipe.attention != "auto":
        attention.kernel_of(recipe, device, COMPUTE_DTYPE[recipe.precision])
    if recipe.compile == "block":
        compiling.prepare(device)
    if recipe.fp8 != "none":
        fp8.prepare(recipe.fp8, device)
    match recipe.strategy:
        case "ddp":
            from jobs.training.strategies import ddp

            return ddp.build(recipe, device)
        case "fsdp":
            from jobs.training.strategies import fsdp

            return fsdp.build(recipe, device)
        case "zero1" | "zero2" | "zero3":
            from jobs.training.strategies import zero

            return zero.build(recipe, device)
        case unknown:
            assert_never(unknown)


def load(strategy: Strategy) -> None:
    """Imports the modules that ``build`` imports, which takes seconds."""
    import_module(f"{__package__}.{'zero' if strategy.startswith('zero') else strategy}")
