"""``deterministic: true`` on the device: two processes that train the same end with the same bits."""

from dataclasses import replace
from functools import cache

import pytest

from cluster.environment import DETERMINISTIC
from jobs.training.task.job import Recipe
from jobs.training.task.settings import Attention
from tests.gpu.apart import apart
from tests.gpu.conftest import Say
from tests.gpu.here import DEVICE
from tests.gpu.saves import trained_each
from tests.gpu.trainings import STRATEGIES, plain

pytestmark = pytest.mark.gpu

KERNELS: tuple[Attention, ...] = ("flash", "efficient", "math", "flex")
RECIPES = {strategy: replace(plain(strategy, "bf16"), deterministic=True) for strategy in STRATEGIES} | {
    f"ddp, {kernel}": replace(plain("ddp", "bf16"), deterministic=True, attention=kernel)
    for kernel in KERNELS
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_deterministic_training_repeats_to_the_bit(name: str, seen: Say) -> None:
    """One rank has no collectives that could be in another order: two devices would be needed for those."""
    (one, other), usual = _digests()[name], _usual()
    seen(f"{'equal' if one == other else 'NOT equal'} to the bit; without it {usual}")
    assert one == other


@cache
def _digests() -> dict[str, tuple[str, str]]:
    found = [_all(list(RECIPES.values())) for _ in range(2)]
    return dict(zip(RECIPES, zip(*found, strict=True), strict=True))


@cache
def _usual() -> str:
    """What flash attention does without the setting: it did not repeat on an H200."""
    recipe = replace(plain("ddp", "bf16"), attention="flash")
    (one, other) = (_all([recipe])[0] for _ in range(2))
    return "flash repeats as well" if one == other else "flash does not repeat"


def _all(recipes: list[Recipe]) -> list[str]:
    return apart(trained_each, recipes, device=DEVICE, variables=DETERMINISTIC)
