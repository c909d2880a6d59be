"""Blocks that multiply in fp8 train as those in bf16 do. Where fp8 can't be had, one line says why.

On a CPU torchao emulates it. ``pytest -s`` shows how far losses are from those of bf16.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import get_args

import pytest
import torch

from checkpointing.errors import Unfit
from jobs.training.models import compiling, fp8
from jobs.training.models.fp8 import lacking
from jobs.training.task.job import Recipe, Strategy
from jobs.training.task.settings import Checkpointing, CrossEntropy, Fp8
from tests.live.ranks import run_ranks
from tests.live.trainings import CPU, Course, recipe_for, train, train_each

RANKS = 2
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")
WAYS: tuple[Fp8, ...] = ("tensorwise", "rowwise")
MODES: tuple[Checkpointing, ...] = get_args(Checkpointing)
LOSSES: tuple[CrossEntropy, ...] = get_args(CrossEntropy)
FEW: list[tuple[Strategy, Fp8, str]] = [("ddp", "rowwise", "llama-tiny"), ("fsdp", "tensorwise", "qwen-tiny")]
ALL = [*product(STRATEGIES, WAYS, ("llama-tiny", "qwen-tiny"))]
NEAR = 0.002
"""How far each of the first losses may be from that in bf16, of its own size."""
NEAR_AFTER_200 = 0.05
"""How far the mean of the last 20 of 200 losses may be from that in bf16, in nats per token."""


def recipe_in(how: Fp8, strategy: Strategy, model: str = "llama-tiny", world_size: int = RANKS) -> Recipe:
    usual = recipe_for(strategy, world_size=world_size, precision="bf16", model=model)
    return replace(usual, fp8=how)


def courses(recipes: Iterable[Recipe], num_steps: int, tmp_path: Path) -> dict[Recipe, Course]:
    """All ranks must see the same."""
    work = dict.fromkeys(recipes, num_steps)
    first, second = run_ranks(train_each, work, num_ranks=RANKS, tmp_path=tmp_path, deadline_s=1200)
    assert first == second
    return first


# By default `test_state_pieces` shows that losses are near, and equal to the bit after a resume.
@pytest.mark.soak
@pytest.mark.parametrize("cases", [FEW, ALL], ids=["few", "all"])
def test_losses_are_near_those_of_bf16_and_equal_to_the_bit_however_little_is_kept(
    cases: list[tuple[Strategy, Fp8, str]], tmp_path: Path
) -> None:
    usual = [recipe_in("none", strategy, model) for strategy, _, model in cases]
    kept = [*product(MODES, LOSSES)] if cases is ALL else [(mode, "chunked") for mode in MODES]
    recipes = [
        replace(recipe_in(how, strategy, model), activation_checkpointing=mode, cross_entropy=loss)
        for (strategy, how, model), (mode, loss) in product(cases, kept)
    ]
    seen = courses([*usual, *recipes], 4, tmp_path)
    for recipe in recipes:
        in_bf16 = replace(recipe, fp8="none", activation_checkpointing="none", cross_entropy="whole")
        assert seen[recipe] == seen[replace(recipe, activation_checkpointing="none")], recipe
        assert seen[recipe].losses == pytest.approx(seen[in_bf16].losses, rel=NEAR, abs=0), recipe
        assert seen[recipe].grad_norms != seen[in_bf16].grad_norms, recipe


@pytest.mark.soak
def test_over_200_steps_losses_stay_near_those_of_bf16(tmp_path: Path) -> None:
    recipes = [recipe_in(how, strategy) for strategy, how in product(STRATEGIES, get_args(Fp8))]
    seen = courses(recipes, 200, tmp_path)
    for recipe in recipes:
        ours, usual = seen[recipe].losses, seen[replace(recipe, fp8="none")].losses
        at_end, usual_at_end = fmean(ours[-20:]), fmean(usual[-20:])
        print(f"{recipe.strategy} {recipe.fp8}: from {ours[0]:.4f} to {at_end:.4f}, bf16 {usual_at_end:.4f}")
        assert at_end == pytest.approx(usual_at_end, abs=NEAR_AFTER_200), recipe


def train_both(recipes: list[Recipe]) -> dict[Recipe, tuple[Course, Course, int]]:
    """Runs on a rank. Of each recipe: eager, compiled, and how many graphs that took."""
    found = {}
    for recipe in recipes:
        eager, before = train(recipe, 4), compiling.num_compiled()
        compiled = train(replace(recipe, compile="block"), 4)
        found[recipe] = eager, compiled, compiling.num_compiled() - before
    return found


@pytest.mark.soak
def test_compiled_blocks_in_fp8_lose_as_others_do_and_are_one_graph(tmp_path: Path) -> None:
    recipes = [
        replace(recipe_in(how, strategy), activation_checkpointing=mode)
        for strategy, how, mode in product(STRATEGIES, WAYS, MODES)
    ]
    for rank in run_ranks(train_both, recipes, num_ranks=RANKS, tmp_path=tmp_path, deadline_s=2400):
        for recipe, (eager, compiled, num_graphs) in rank.items():
            assert compiled.losses == pytest.approx(eager.losses, rel=NEAR, abs=0), recipe
            assert num_graphs == 1, recipe


@pytest.mark.parametrize(
    ("device", "capability", "chip", "why_not"),
    [
        ("NVIDIA L40S", (8, 9), None, None),
        ("NVIDIA H100 80GB HBM3", (9, 0), None, None),
        ("NVIDIA B200", (10, 0), None, None),
        (
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            None,
            "NVIDIA A100-SXM4-80GB is sm80, and fp8 needs sm89 or newer",
        ),
        ("AMD Instinct MI300X", (9, 4), "gfx942:sramecc+:xnack-", None),
        ("AMD Instinct MI355X", (9, 5), "gfx950:sramecc+:xnack-", None),
        (
            "AMD Instinct MI250X",
            (9, 0),
            "gfx90a:sramecc+:xnack-",
            "AMD Instinct MI250X is gfx90a, and fp8 needs gfx942 (MI300) or gfx950 (MI350)",
        ),
    ],
)
def test_a_device_without_fp8_is_named_with_what_it_lacks(
    device: str, capability: tuple[int, int], chip: str | None, why_not: str | None
) -> None:
    assert lacking(device, capability, chip) == why_not


def test_without_torchao_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    monkeypatch.setattr(fp8, "_linear_in_fp8", fp8._linear_in_fp8.__wrapped__)
    with pytest.raises(Unfit, match=r"^fp8: rowwise can't be had here: torchao .*pip install -e '.\[fp8\]'"):
        fp8.prepare("rowwise", CPU)


def test_a_torch_without_the_kernels_says_so_before_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_kernels(*_: object) -> torch.Tensor:
        raise RuntimeError("_scaled_mm is not built\nException raised from ...")

    monkeypatch.setattr(fp8, "_linear_in_fp8", lambda how: without_kernels)
    with pytest.raises(
        Unfit, match=r"^fp8: tensorwise can't be had here: torch says: _scaled_mm is not built; .*none$"
    ):
        fp8.prepare("tensorwise", CPU)
