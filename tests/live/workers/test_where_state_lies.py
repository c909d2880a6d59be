"""Copies of the state within some neighbours each (``shard_within``), and the optimizer's in host memory.

What is saved, held and sent is looked at on four ranks, in two copies.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.task.job import Recipe
from tests.live import saved_pieces
from tests.live.ranks import run_ranks
from tests.live.saves.test_state_pieces import (
    Ending,
    Endings,
    Resumed,
    SetBack,
    Work,
    assert_close,
    carry_out,
    expected_shapes,
    place,
    same,
)
from tests.live.trainings import STRATEGIES, recipe_for
from tests.live.workers.test_sharding import Observed, observe_each

RANKS, SEQUENCES_PER_STEP = 4, 8


def on_ranks(recipe: Recipe, world_size: int) -> Recipe:
    """At one global batch, always of several micro-batches."""
    return replace(recipe, world_size=world_size, grad_accum=SEQUENCES_PER_STEP // world_size)


DDP = on_ranks(recipe_for("ddp", world_size=RANKS), RANKS)
FSDP, ZERO3 = replace(DDP, strategy="fsdp"), replace(DDP, strategy="zero3")
WITHIN = replace(FSDP, shard_within=2)
HOSTED = replace(WITHIN, offload="optimizer")
ZERO_HOSTED = replace(ZERO3, offload="optimizer")
PLACED = (WITHIN, HOSTED, ZERO_HOSTED)
# On two ranks zero3 does so by default too: `test_strategies`, and pieces on three: `test_state_pieces`.
FEW = (WITHIN, HOSTED)
OTHERS = tuple(replace(DDP, strategy=strategy) for strategy in STRATEGIES)
# All others are crossed in `test_each_goes_on_as_each_other`.
CROSSINGS = ((DDP, WITHIN), (WITHIN, ZERO_HOSTED))
ALONE = replace(FSDP, shard_within=1, offload="optimizer")
ALL = (*PLACED, ALONE, replace(FSDP, offload="optimizer"), *OTHERS)
IN_BF16 = tuple(replace(recipe, precision="bf16") for recipe in ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank saw: how trainings ended, and one step of each recipe that says where the state lies."""

    endings: Endings
    observed: dict[Recipe, Observed]


def look(work: Work, observed: tuple[Recipe, ...], folder: Path) -> Seen:
    """Runs on a rank."""
    return Seen(endings=carry_out(work, folder), observed=observe_each(list(observed)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("placed")


@pytest.fixture(
    scope="module", params=[FEW, pytest.param(PLACED, marks=pytest.mark.soak)], ids=["few", "all"]
)
def placed(request: pytest.FixtureRequest) -> tuple[Recipe, ...]:
    found: tuple[Recipe, ...] = request.param
    return found


@pytest.fixture(scope="module")
def seen(placed: tuple[Recipe, ...], folder: Path) -> list[Seen]:
    work = Work(
        saved=[*placed, DDP],
        undisturbed=[*placed, DDP],
        resumed=[*map(same, placed), *crossings(placed)],
    )
    return run_ranks(look, work, placed, folder, num_ranks=RANKS, tmp_path=folder)


def crossings(placed: tuple[Recipe, ...]) -> list[Resumed]:
    return [Resumed(origin=origin, now=now) for origin, now in CROSSINGS if now in placed]


def test_a_training_that_goes_on_is_equal_to_the_bit(seen: list[Seen], placed: tuple[Recipe, ...]) -> None:
    for recipe, rank in product(placed, seen):
        assert rank.endings[same(recipe)] == rank.endings[recipe], recipe
        assert rank.endings[SetBack(training=recipe)] == rank.endings[recipe], recipe


def test_it_loses_as_ddp_does(seen: list[Seen], placed: tuple[Recipe, ...]) -> None:
    for recipe in placed:
        assert_close(seen[0].endings[recipe], seen[0].endings[DDP])


def test_moments_in_host_memory_change_no_bit(seen: list[Seen]) -> None:
    for rank in seen:
        assert rank.endings[HOSTED] == rank.endings[WITHIN]


def test_a_training_goes_on_where_its_state_lies_elsewhere(
    seen: list[Seen], placed: tuple[Recipe, ...]
) -> None:
    moves = crossings(placed)
    assert moves
    for move in moves:
        assert_close(seen[0].endings[move], seen[0].endings[move.origin])


def test_the_pieces_of_all_ranks_are_every_tensor_once(
    seen: list[Seen], placed: tuple[Recipe, ...], folder: Path
) -> None:
    for recipe in placed:
        saved, _ = saved_pieces.load(folder / place(recipe))
        assert {name: pieces[0].shape for name, pieces in saved.items()} == expected_shapes(recipe.model)
        wrong = [saved_pieces.gaps_and_overlaps(pieces) for pieces in saved.values()]
        assert [problem for problems in wrong for problem in problems] == [], recipe


def test_copies_share_the_saving(seen: list[Seen], folder: Path) -> None:
    sizes = [(folder / place(WITHIN) / f"{rank}.bin").stat().st_size for rank in range(RANKS)]
    assert max(sizes) - min(sizes) < 0.01 * max(sizes)


def test_it_goes_on_at_another_world_size(seen: list[Seen], folder: Path) -> None:
    moves = [Resumed(origin=WITHIN, now=on_ranks(recipe, 2)) for recipe in (FSDP, ALONE)]
    on_two = run_ranks(carry_out, Work(resumed=moves), folder, num_ranks=2, tmp_path=folder)[0]
    for move in moves:
        assert_close(on_two[move], seen[0].endings[WITHIN])


@pytest.mark.soak
def test_it_comes_back_from_another_world_size(seen: list[Seen], folder: Path) -> None:
    alone = on_ranks(ALONE, 2)
    run_ranks(carry_out, Work(saved=[alone]), folder, num_ranks=2, tmp_path=folder)
    back = Resumed(origin=alone, now=WITHIN)
    on_four = run_ranks(carry_out, Work(resumed=[back]), folder, num_ranks=RANKS, tmp_path=folder)[0]
    assert_close(on_four[back], seen[0].endings[WITHIN])


@pytest.mark.soak
@pytest.mark.parametrize("recipes", (ALL, IN_BF16), ids=("fp32", "bf16"))
def test_each_goes_on_as_each_other(recipes: tuple[Recipe, ...], tmp_path: Path) -> None:
    pairs = [Resumed(origin=origin, now=now) for origin, now in product(recipes, recipes)]
    work = Work(saved=list(recipes), undisturbed=list(recipes), resumed=pairs)
    ranks = run_ranks(carry_out, work, tmp_path, num_ranks=RANKS, tmp_path=tmp_path, deadline_s=3600)
    for recipe, rank in product(recipes, ranks):
        assert rank[same(recipe)] == rank[recipe] == rank[SetBack(training=recipe)]
    hosted = [recipe for recipe in recipes if (recipe.strategy, recipe.offload) == ("fsdp", "optimizer")]
    for recipe, rank in product(hosted, ranks):
        usual = replace(recipe, offload="none")
        assert usual not in recipes or rank[recipe] == rank[usual]
    for pair in pairs:
        _assert_near(ranks[0][pair], ranks[0][pair.origin])
    print(f"\n{len(pairs)} of {len(recipes) ** 2} pairs, {len(recipes)} to the bit")


def _assert_near(resumed: Ending, undisturbed: Ending) -> None:
    """As ``assert_close``; in bf16 as near as ``test_strategies`` demands."""
    assert resumed.losses == pytest.approx(undisturbed.losses, rel=0, abs=1e-3)


def test_every_rank_holds_what_the_setting_says(seen: list[Seen], placed: tuple[Recipe, ...]) -> None:
    for recipe, rank in product(placed, seen):
        held, between = rank.observed[recipe].before_update, rank.observed[recipe].between
        found = (
            held.parameters,
            held.masters,
            between.gradients,
            held.gradients,
            held.moments,
            held.offloaded,
        )
        for num_bytes, expected in zip(found, bytes_per_parameter(recipe), strict=True):
            per_parameter = num_bytes / recipe.model.num_parameters
            # As in ``test_sharding``.
            assert 0.97 * expected <= per_parameter <= expected + 0.25, rank.observed[recipe]


def bytes_per_parameter(recipe: Recipe) -> tuple[float, ...]:
    """Parameters, masters, gradients between micro-batches and before the update, moments, offloaded."""
    if recipe.strategy == "zero3":
        # DeepSpeed sums gradients up in one buffer in host memory, and updates from another one.
        return (4 / RANKS, 4 / RANKS, 8 / RANKS, 8 / RANKS, 8 / RANKS, 20 / RANKS)
    moments = 8 / recipe.ranks_per_copy
    offloaded = moments if recipe.offload == "optimizer" else 0
    return (moments / 2, 0, moments / 2, moments / 2, moments, offloaded)


def test_no_tensor_of_note_is_missing_from_the_footprint(
    seen: list[Seen], placed: tuple[Recipe, ...]
) -> None:
    for recipe, rank in product(placed, seen):
        held = rank.observed[recipe].before_update
        counted = held.parameters + held.masters + held.gradients + held.moments
        num_missing = (rank.observed[recipe].held_bytes - counted) / recipe.model.num_parameters
        assert -0.001 <= num_missing <= 0.3, rank.observed[recipe]


@pytest.mark.parametrize("recipe", [WITHIN, HOSTED], ids=place)
def test_copies_talk_once_a_step_and_about_gradients_alone(seen: list[Seen], recipe: Recipe) -> None:
    """In a step of two micro-batches, over the size of the model."""
    expected: dict[tuple[str, torch.dtype], Any] = {
        ("_allgather_base_", COMPUTE_DTYPE[recipe.precision]): pytest.approx(4, abs=0.35),
        ("_reduce_scatter_base_", torch.float32): pytest.approx(2, rel=0.02),
        ("allreduce_", torch.float32): pytest.approx(1 / recipe.ranks_per_copy, rel=0.02),
    }
    for rank in seen:
        sent = rank.observed[recipe].sent
        times = {call: elements / recipe.model.num_parameters for call, elements in sent.items()}
        assert {call: number for call, number in times.items() if number > 0.001} == expected
