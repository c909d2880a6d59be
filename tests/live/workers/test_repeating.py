"""``deterministic``: torch's modes, and strategies that train under them. A CPU repeats without them."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from jobs.training.device import repeating
from jobs.training.strategies.build import build
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, STRATEGIES, recipe_for, train


def test_every_strategy_trains_in_modes_that_repeat_and_leaves_them_with_the_next_recipe(
    tmp_path: Path,
) -> None:
    assert run_ranks(_courses, num_ranks=1, tmp_path=tmp_path) == [[True] * len(STRATEGIES)]


def _courses() -> list[bool]:
    """Whether each strategy's losses are the same with the setting. No CPU kernel that we use has another."""
    assert dist.get_world_size() == 1
    found = []
    for strategy in STRATEGIES:
        usual = recipe_for(strategy, world_size=1)
        course = train(usual, 2)
        assert not torch.are_deterministic_algorithms_enabled()
        found.append(train(replace(usual, deterministic=True), 2) == course)
        assert torch.are_deterministic_algorithms_enabled()
    return found


def test_modes_are_set_before_a_model_is_built_and_only_where_they_are_asked_for(tmp_path: Path) -> None:
    assert run_ranks(_modes, num_ranks=1, tmp_path=tmp_path) == [None]


def _modes() -> None:
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # As NVIDIA's images do.
    repeating.prepare(False)
    assert torch.get_float32_matmul_precision() == "high"
    build(replace(recipe_for("ddp", world_size=1), deterministic=True), CPU).close()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "highest"


def test_without_the_setting_no_compiler_is_loaded(tmp_path: Path) -> None:
    assert run_ranks(_loaded, num_ranks=1, tmp_path=tmp_path, from_scratch=True) == [False]


def _loaded() -> bool:
    repeating.prepare(False)
    return "torch._inductor.config" in sys.modules
