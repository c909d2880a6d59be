"""The five strategies are five ways to the same numbers."""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from jobs.training.task.job import Precision, Recipe, Strategy
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES, Course, recipe_for, train_each

OTHER_MODELS = ("qwen-tiny", "mistral-tiny")
# By default each of them once, under one way of holding parameters each.
CROSSED: tuple[tuple[Strategy, str], ...] = (("fsdp", "qwen-tiny"), ("zero3", "mistral-tiny"))
FSDP, ZERO3 = recipe_for("fsdp", world_size=2), recipe_for("zero3", world_size=2)
# The state in two copies, and in host memory; for more ranks see `test_where_state_lies`.
PLACED = (
    replace(FSDP, shard_within=1),
    replace(FSDP, offload="optimizer"),
    replace(ZERO3, offload="optimizer"),
)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Course]:
    num_steps = {recipe_for(strategy, world_size=2): 10 for strategy in STRATEGIES}
    for strategy in STRATEGIES:
        num_steps[recipe_for(strategy, world_size=2, precision="bf16")] = 5
    for strategy, model in (*CROSSED, *product(("ddp",), OTHER_MODELS)):
        num_steps[recipe_for(strategy, world_size=2, model=model)] = 2
    for recipe, precision in product(PLACED, get_args(Precision)):
        num_steps[replace(recipe, precision=precision)] = 5
    return _same_on_all_ranks(2, num_steps, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Course]:
    num_steps = {recipe_for(strategy, world_size=1, micro_batch=2): 10 for strategy in STRATEGIES}
    return _same_on_all_ranks(1, num_steps, tmp_path_factory.mktemp("one"))


def _same_on_all_ranks(num_ranks: int, num_steps: dict[Recipe, int], tmp_path: Path) -> dict[Recipe, Course]:
    first, *others = run_ranks(train_each, num_steps, num_ranks=num_ranks, tmp_path=tmp_path)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(("strategy", "model"), [*product(STRATEGIES, ("llama-tiny",)), *CROSSED])
def test_every_strategy_loses_as_ddp_does(
    on_two_ranks: dict[Recipe, Course], strategy: Strategy, model: str
) -> None:
    _assert_as_ddp(on_two_ranks, strategy, model)


@pytest.mark.soak
def test_with_other_models_too_every_strategy_loses_as_ddp_does(tmp_path: Path) -> None:
    pairs = [*product(STRATEGIES, OTHER_MODELS)]
    num_steps = {recipe_for(strategy, world_size=2, model=model): 2 for strategy, model in pairs}
    courses = _same_on_all_ranks(2, num_steps, tmp_path)
    for strategy, model in pairs:
        _assert_as_ddp(courses, strategy, model)


def _assert_as_ddp(courses: dict[Recipe, Course], strategy: Strategy, model: str) -> None:
    course = courses[recipe_for(strategy, world_size=2, model=model)]
    ddp = courses[recipe_for("ddp", world_size=2, model=model)]
    assert course.losses == pytest.approx(ddp.losses, rel=0, abs=1e-5)
    assert course.grad_norms == pytest.approx(ddp.grad_norms, rel=1e-4)


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("recipe", PLACED)
def test_where_the_state_lies_changes_losses_by_rounding_alone(
    on_two_ranks: dict[Recipe, Course], recipe: Recipe, precision: Precision
) -> None:
    course = on_two_ranks[replace(recipe, precision=precision)]
    ddp = on_two_ranks[recipe_for("ddp", world_size=2, precision=precision)]
    # As below.
    assert course.losses[:2] == pytest.approx(ddp.losses[:2], rel=0, abs=1e-5)
    assert course.losses == pytest.approx(ddp.losses[:5], rel=0, abs=1e-5 if precision == "fp32" else 1e-3)


@pytest.mark.parametrize("precision", get_args(Precision))
def test_moments_in_host_memory_change_no_bit(
    on_two_ranks: dict[Recipe, Course], precision: Precision
) -> None:
    usual = replace(FSDP, precision=precision)
    course = on_two_ranks[replace(usual, offload="optimizer")]
    assert course.losses == on_two_ranks[usual].losses[: len(course.losses)]
    assert course.grad_norms == on_two_ranks[usual].grad_norms[: len(course.losses)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_and_two_lose_alike_at_one_global_batch(
    on_one_rank: dict[Recipe, Course], on_two_ranks: dict[Recipe, Course], strategy: Strategy
) -> None:
    one = on_one_rank[recipe_for(strategy, world_size=1, micro_batch=2)]
    two = on_two_ranks[recipe_for(strategy, world_size=2, micro_batch=1)]
    assert one.losses == pytest.approx(two.losses, rel=0, abs=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_bf16_every_strategy_loses_as_ddp_does_up_to_its_rounding(
    on_two_ranks: dict[Recipe, Course], strategy: Strategy
) -> None:
    course = on_two_ranks[recipe_for(strategy, world_size=2, precision="bf16")]
    ddp = on_two_ranks[recipe_for("ddp", world_size=2, precision="bf16")]
    # Up to the first update nothing is rounded that was summed up in another order. Then the least
    # difference flips bf16 roundings: ddp itself moves by 2e-4 if its clip norm is 1.0000001.
    assert course.losses[:2] == pytest.approx(ddp.losses[:2], rel=0, abs=1e-5)
    assert course.losses == pytest.approx(ddp.losses, rel=0, abs=1e-3)
    in_fp32 = on_two_ranks[recipe_for(strategy, world_size=2)]
    assert course.losses[0] != in_fp32.losses[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_learning_rate_warms_up_and_the_loss_goes_down(
    on_two_ranks: dict[Recipe, Course], strategy: Strategy
) -> None:
    course = on_two_ranks[recipe_for(strategy, world_size=2)]
    assert course.learning_rates == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4] + 6 * [1e-3])
    assert course.losses[-1] < course.losses[0] - 0.2


def test_nothing_is_printed_on_stdout_where_results_go_and_no_compiler_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    num_steps = {recipe_for(strategy, world_size=1, precision="bf16"): 1 for strategy in STRATEGIES}
    assert run_ranks(_loads, num_steps, num_ranks=1, tmp_path=tmp_path, from_scratch=True) == [False]
    assert capfd.readouterr().out == ""


def _loads(num_steps: dict[Recipe, int]) -> bool:
    """Whether training loads torch's compiler, which takes seconds."""
    train_each(num_steps)
    return "torch._inductor.compile_fx" in sys.modules
