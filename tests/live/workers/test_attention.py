"""Which kernel computes attention is known, may be chosen, and changes nothing but rounding."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from checkpointing.errors import Unfit
from jobs.training.models.attention import attend, kernel_of
from jobs.training.strategies import ddp
from jobs.training.strategies.build import build
from jobs.training.task.job import Recipe
from jobs.training.task.settings import Attention
from tests.live.trainings import CPU, recipe_for, train

# The second has a window that is shorter than these sequences, so its attention goes by a mask.
MODELS = ("llama-tiny", "mistral-tiny")


def recipe(model: str, how: Attention) -> Recipe:
    return replace(recipe_for("ddp", world_size=1, model=model), attention=how, seq_len=96)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("how", "kernel"), [("auto", "flash"), ("flash", "flash"), ("math", "math")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_that_runs_is_known(model: str, how: Attention, kernel: str, dtype: torch.dtype) -> None:
    assert kernel_of(recipe(model, how), CPU, dtype) == kernel


@pytest.mark.parametrize("how", ["efficient", "cudnn"])
def test_a_kernel_that_cannot_be_had_is_refused_before_a_step(how: Attention) -> None:
    with pytest.raises(
        Unfit, match=f"^attention: {how} can't be had for float32, heads of 32 on cpu; expected"
    ):
        build(recipe("llama-tiny", how), CPU)


@pytest.mark.parametrize(("how", "heads"), [("efficient", 8), ("cudnn", 2), ("auto", 2)])
def test_the_efficient_kernel_alone_is_given_repeated_heads(
    how: Attention, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 it refused groups, so ``efficient`` could not be had in bf16."""
    given: list[tuple[int, bool]] = []

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, enable_gqa: bool, **_: object
    ) -> None:
        given.append((k.shape[1], enable_gqa))

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    q, k = torch.zeros(1, 8, 4, 32), torch.zeros(1, 2, 4, 32)
    attend(q, k, k, None, how, grouped=True)
    assert given == [(heads, heads == 2)]


@pytest.mark.parametrize(("how", "shape"), [("auto", (1, 1)), ("cudnn", (2, 96))])
def test_ddp_settles_its_buckets_with_as_many_tokens_as_the_kernel_takes(
    how: Attention, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 cuDNN's refused a single one, which ended every training."""
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(ddp, "settle_buckets", lambda model, tokens: shapes.append(tuple(tokens.shape)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp.build(replace(recipe("llama-tiny", how), micro_batch=2), CPU).close()
    finally:
        dist.destroy_process_group()
    assert shapes == [shape]


@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_computes_the_same(model: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        flash, slow = (train(recipe(model, how), 3) for how in ("flash", "math"))
    finally:
        dist.destroy_process_group()
    assert slow.losses == pytest.approx(flash.losses, rel=1e-5)
    assert slow.grad_norms == pytest.approx(flash.grad_norms, rel=1e-4)
