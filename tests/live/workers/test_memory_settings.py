"""Settings that exchange memory for time change neither losses nor gradients, under every strategy.

What is computed again must be equal to the bit. A loss in chunks sums in another order, so that it may differ
by rounding: in fp32 by 1e-5, in bf16 by that of its gradients.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.training.models.checkpointing import checkpointed
from jobs.training.models.head import chunked_cross_entropy, whole_cross_entropy
from jobs.training.task import job
from jobs.training.task.job import Precision, Recipe, Strategy, tokens_per_chunk
from jobs.training.task.presets import ModelConfig, preset
from jobs.training.task.settings import Checkpointing, CrossEntropy
from tests.live.ranks import run_ranks
from tests.live.trainings import STRATEGIES, Course, recipe_for, train_each

RANKS, STEPS = 2, 3
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MODES: tuple[Checkpointing, ...] = get_args(Checkpointing)
LOSSES: tuple[CrossEntropy, ...] = get_args(CrossEntropy)
USUAL, TIED = preset("llama-tiny"), preset("qwen-mini")
# Its words are what it spends its time on; it takes its eight layers for the order to be another one.
FEW_WORDS = replace(TIED, vocab_size=512)
FAR = {"fp32": 1e-5, "bf16": 4e-3}
"""How far a chunked loss may be from the whole one, of its own size; of norms in bf16 five times that."""


def recipes_of(
    strategies: Sequence[Strategy], precisions: Sequence[Precision], model: ModelConfig = USUAL
) -> list[Recipe]:
    return [
        replace(
            recipe_for(strategy, world_size=RANKS, precision=precision),
            model=model,
            activation_checkpointing=mode,
            cross_entropy=loss,
        )
        for strategy, precision, mode, loss in product(strategies, precisions, MODES, LOSSES)
    ]


# Under zero3 this model's blocks gather weights in another order in the backward pass.
ANOTHER_ORDER = [
    recipe
    for recipe in recipes_of(("zero3",), ("bf16",), FEW_WORDS)
    if recipe.activation_checkpointing != "full" and recipe.cross_entropy == "whole"
]
QUICK = recipes_of(("fsdp",), ("bf16",)) + ANOTHER_ORDER
SOAK = recipes_of(STRATEGIES, PRECISIONS) + recipes_of(STRATEGIES, PRECISIONS, TIED)


def train_all(recipes: Sequence[Recipe]) -> dict[Recipe, Course]:
    """Runs on a rank. Chunks are so small that a batch has several."""
    job.MOST_CHUNK_BYTES = 4 * 12 * max(recipe.model.vocab_size for recipe in recipes)
    return train_each(dict.fromkeys(recipes, STEPS))


@pytest.fixture(
    scope="module", params=[QUICK, pytest.param(SOAK, marks=pytest.mark.soak)], ids=["some", "all"]
)
def courses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Recipe, Course]:
    folder = tmp_path_factory.mktemp("settings")
    first, second = run_ranks(train_all, request.param, num_ranks=RANKS, tmp_path=folder, deadline_s=3600)
    assert first == second
    return first


def test_what_is_computed_again_is_equal_to_the_bit(courses: dict[Recipe, Course]) -> None:
    wrong = [
        recipe
        for recipe, course in courses.items()
        if course != courses[replace(recipe, activation_checkpointing="none")]
    ]
    assert not wrong
    assert {recipe.activation_checkpointing for recipe in courses} == set(MODES)


def test_a_loss_in_chunks_is_the_loss(courses: dict[Recipe, Course]) -> None:
    for recipe, course in courses.items():
        whole, far = courses[replace(recipe, cross_entropy="whole")], FAR[recipe.precision]
        assert course.losses == pytest.approx(whole.losses, rel=far, abs=0), recipe
        assert course.grad_norms == pytest.approx(whole.grad_norms, rel=5 * far, abs=0), recipe


@pytest.mark.parametrize("num_tokens", [1, 11, 12, 13, 36])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_loss_in_chunks_are_those_of_the_whole(
    num_tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both beside fp64, so that neither's rounding is taken for right."""
    vocabulary, size = 97, 16
    monkeypatch.setattr(job, "MOST_CHUNK_BYTES", 4 * vocabulary * 12)
    assert tokens_per_chunk(vocabulary) == 12
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, num_tokens, size, generator=generator).to(dtype)
    weight = torch.randn(vocabulary, size, generator=generator).to(dtype)
    labels = torch.randint(vocabulary, (1, num_tokens), generator=generator)
    exact = loss_and_gradients(whole_cross_entropy, hidden.double(), weight.double(), labels)
    whole = loss_and_gradients(whole_cross_entropy, hidden, weight, labels)
    chunked = loss_and_gradients(chunked_cross_entropy, hidden, weight, labels)
    for right, usual, ours in zip(exact, whole, chunked, strict=True):
        error, allowed = (ours - right).abs().max(), (usual - right).abs().max()
        assert error <= 2 * allowed + 1e-6 * right.abs().max()


def loss_and_gradients(
    cross_entropy: Callable[[Tensor, Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor, labels: Tensor
) -> tuple[Tensor, ...]:
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = cross_entropy(hidden, weight, labels)
    (loss / 3).backward()
    assert hidden.grad is not None and weight.grad is not None
    return loss.detach().double(), hidden.grad.double(), weight.grad.double()


def test_a_loss_in_chunks_without_gradients_computes_none() -> None:
    hidden, weight = torch.ones(1, 2, 4), torch.ones(8, 4, requires_grad=True)
    with torch.no_grad():
        loss = chunked_cross_entropy(hidden, weight, torch.zeros(1, 2, dtype=torch.int64))
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(torch.log(torch.tensor(8.0)).item())


@pytest.mark.parametrize(("mode", "again"), [("none", (4, 0)), ("selective", (4, 1)), ("full", (5, 1))])
def test_what_a_mode_computes_again(mode: Checkpointing, again: tuple[int, int]) -> None:
    """A backward pass of two products has four; one of the two and what is between may be computed again."""
    first, second = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    out = checkpointed(mode, lambda x: F.silu(x @ first) @ second, torch.randn(4, 4, requires_grad=True))
    with Counting() as counting:
        out.sum().backward()
    assert (counting.calls["mm.default"], counting.calls["silu.default"]) == again


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))
