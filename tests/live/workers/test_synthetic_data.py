"""The tokens of a step depend on the seed and the step, not on who reads them."""

from dataclasses import replace

import pytest
import torch

from jobs.training.data.synthetic import NUM_GLOBAL_BATCHES, make_batches
from jobs.training.task.job import Recipe
from tests.live.trainings import CPU, recipe_for

STEP = 3


def tokens_of_step(recipe: Recipe, step: int) -> list[tuple[int, ...]]:
    """All sequences that all ranks read, sorted."""
    ids = [
        row
        for rank in range(recipe.world_size)
        for ids, _ in make_batches(recipe, rank, CPU).load(step)
        for row in ids.tolist()
    ]
    return sorted(map(tuple, ids))


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "grad_accum"), [(1, 4, 2), (2, 1, 4), (4, 2, 1), (8, 1, 1)]
)
def test_a_step_has_the_same_samples_however_they_are_dealt_out(
    world_size: int, micro_batch: int, grad_accum: int
) -> None:
    recipe = recipe_for("ddp", world_size=world_size, micro_batch=micro_batch, grad_accum=grad_accum)
    reference = recipe_for("zero3", world_size=2, micro_batch=2, grad_accum=2)
    tokens = tokens_of_step(recipe, STEP)
    assert tokens == tokens_of_step(reference, STEP)
    assert len(set(tokens)) == 8


def test_steps_and_seeds_differ_and_the_batches_come_around_again() -> None:
    recipe = recipe_for("ddp", world_size=1)
    tokens = tokens_of_step(recipe, STEP)
    assert tokens != tokens_of_step(recipe, STEP + 1)
    assert tokens != tokens_of_step(replace(recipe, seed=2), STEP)
    assert tokens == tokens_of_step(recipe, STEP + NUM_GLOBAL_BATCHES)


def test_a_label_is_the_token_that_follows_and_most_tokens_count_on() -> None:
    recipe = recipe_for("ddp", world_size=1)
    for ids, labels in make_batches(recipe, 0, CPU).load(STEP):
        assert torch.equal(ids[:, 1:], labels[:, :-1])
        assert int(labels.max()) < recipe.model.vocab_size
        counts_on = (ids + 1) % recipe.model.vocab_size == labels
        assert 0.6 < counts_on.float().mean() < 1.0
