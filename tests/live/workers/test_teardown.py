"""After ``close`` a process is as it was: the next run in it measures what it would in a fresh one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DeepSpeed imports it, and importing it alone wraps parts of torch.optim.
import torch.distributed as dist

from jobs.training.device.host_memory import resident_bytes, return_large_pieces
from jobs.training.models import decoder
from jobs.training.task.job import Precision, Recipe, Strategy
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES, Course, held_bytes, recipe_for, train

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What an engine left in a process that had trained before."""

    replaced: tuple[str, ...]
    num_hooks: int
    tensor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """ddp in a fresh process, one engine of each kind after it, and ddp again."""

    first: Course
    leftovers: dict[Recipe, Leftovers]
    last: Course


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    recipes = [
        recipe_for(strategy, world_size=2, precision=precision)
        for strategy in STRATEGIES
        for precision in PRECISIONS
    ]
    return run_ranks(spend_a_day, recipes, num_ranks=2, tmp_path=tmp_path_factory.mktemp("day"))[0]


def spend_a_day(recipes: list[Recipe]) -> Day:
    """Runs on a rank."""
    ddp = recipe_for("ddp", world_size=2)
    first = train(ddp, num_steps=4)
    functions, tensor_bytes = functions_of_torch(), held_bytes()
    leftovers = {}
    for recipe in recipes:
        train(recipe, num_steps=2)
        leftovers[recipe] = look_around(functions, tensor_bytes)
    return Day(first=first, leftovers=leftovers, last=train(ddp, num_steps=4))


def look_around(functions: dict[str, Any], tensor_bytes: int) -> Leftovers:
    now = functions_of_torch()
    hooks = [value for name, value in vars(torch.nn.modules.module).items() if name.endswith("_hooks")]
    return Leftovers(
        replaced=tuple(name for name, function in functions.items() if now.get(name) is not function),
        num_hooks=sum(len(of_kind) for of_kind in hooks if isinstance(of_kind, dict)),
        tensor_bytes=held_bytes() - tensor_bytes,
    )


def functions_of_torch() -> dict[str, Any]:
    """Everything callable that a model's step may go through, by name."""
    owners: list[Any] = [torch, torch.nn, torch.nn.functional, torch.autograd, torch.optim, dist]
    owners += [torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.Embedding, torch.nn.RMSNorm]
    owners += [torch.nn.Parameter, torch.autograd.Function, torch.optim.Optimizer, torch.optim.AdamW]
    owners += [kind for kind in vars(decoder).values() if isinstance(kind, type)]
    return {
        f"{owner.__name__}.{name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_closed_engine_leaves_no_function_of_torch_replaced_no_hook_and_no_memory(
    day: Day, strategy: Strategy, precision: Precision
) -> None:
    left = day.leftovers[recipe_for(strategy, world_size=2, precision=precision)]
    assert left.replaced == ()
    assert left.num_hooks == 0
    assert left.tensor_bytes < 1000


def test_after_every_other_strategy_ddp_trains_to_the_bit_as_in_a_fresh_process(day: Day) -> None:
    assert day.last == day.first


@pytest.mark.parametrize(
    ("strategy", "num_engines"),
    # Of all, zero3 leaves most behind.
    [
        ("zero3", 4),
        *(pytest.param(name, 10, marks=pytest.mark.soak) for name in ("ddp", "fsdp", "zero2", "zero3")),
    ],
)
def test_many_engines_in_one_process_take_no_more_than_two(
    strategy: Strategy, num_engines: int, tmp_path: Path
) -> None:
    recipe = recipe_for(strategy, world_size=2)
    # 4.9 million parameters: even in slices an engine holds 39 MB of state.
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=16384))
    for resident, num_open in run_ranks(wear_out, recipe, num_engines, num_ranks=2, tmp_path=tmp_path):
        assert resident[-1] - resident[1] < 30e6
        assert num_open[-1] <= num_open[1]


def wear_out(recipe: Recipe, num_engines: int) -> tuple[list[int], list[int]]:
    """Runs on a rank: resident bytes and open descriptors after each engine."""
    # As workers do: else a thread keeps a freed gradient at times.
    return_large_pieces()
    resident, num_open = [], []
    for _ in range(num_engines):
        train(recipe, num_steps=1)
        resident.append(resident_bytes())
        num_open.append(len(list(Path("/proc/self/fd").iterdir())))
    return resident, num_open
