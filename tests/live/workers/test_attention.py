"""Which kernel computes attention is known, may be chosen, and changes nothing but rounding."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
import torch.nn.attention.flex_attention
import torch.nn.attention.varlen

from checkpointing.errors import Unfit
from jobs.training.models import attention, compiling, decoder
from jobs.training.models.attention import attend, kernel_of, takes_begins
from jobs.training.models.checkpointing import _OnlyKept
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import materialize
from jobs.training.strategies import ddp
from jobs.training.strategies.build import build
from jobs.training.task.job import Recipe
from jobs.training.task.presets import preset
from jobs.training.task.settings import Attention, Checkpointing, Compile, Settings
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


def test_flex_attention_is_refused_where_it_has_no_backward_pass() -> None:
    with pytest.raises(
        Unfit, match=r"^attention: flex can't be had on cpu, where it has no backward pass; exp"
    ):
        build(recipe("llama-tiny", "flex"), CPU)


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


@pytest.mark.parametrize(("how", "shape"), [("auto", (1, 1)), ("cudnn", (2, 96)), ("flex", (2, 96))])
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


def test_flash_alone_is_told_where_samples_begin_and_only_on_a_device() -> None:
    device, window = torch.device("cuda"), torch.zeros(1)
    assert takes_begins("flash", device, None)
    assert not takes_begins("flash", CPU, None)
    assert not takes_begins("flash", device, window)
    assert not any(takes_begins(how, device, None) for how in ("auto", "efficient", "cudnn", "math"))


def test_torchs_operation_takes_what_it_is_given() -> None:
    """Without values, as it has no kernel on CPUs."""
    with torch.device("meta"):
        q, k = (torch.zeros(2, heads, 64, 32, dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2))
        begins = torch.zeros(4, dtype=torch.int32)
        with (watching := attention._Watching()):
            mixed = attend(q, k, k, begins, "flash", grouped=False)
    mixed.sum().backward()
    assert watching.kernel == "flash of variable lengths"
    assert mixed.shape == q.shape
    assert q.grad is not None and k.grad is not None and k.grad.shape == k.shape


def each_alone(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    begins: torch.Tensor,
    begins_of_keys: torch.Tensor,
    longest: int,
    longest_of_keys: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """What torch's documentation says of ``varlen_attn``, in the words of its attention without lengths."""
    assert begins is begins_of_keys and begins.dtype == torch.int32
    bounds = list(pairwise(begins.tolist()))
    assert bounds[0][0] == 0 and bounds[-1][1] == len(q)
    assert max(end - first for first, end in bounds) <= longest == longest_of_keys
    assert window_size == (-1, 0) and enable_gqa
    return torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(
                *(heads[first:end].transpose(0, 1) for heads in (q, k, v)), is_causal=True, enable_gqa=True
            ).transpose(0, 1)
            for first, end in bounds
        ]
    )


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama-tiny", "qwen-3-tiny"])
def test_samples_that_are_told_apart_have_the_losses_and_gradients_of_those_that_a_mask_keeps_apart(
    name: str, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", each_alone)
    monkeypatch.setattr(decoder, "takes_begins", lambda how, device, mask: how == "flash" and mask is None)
    ids = torch.arange(2 * 40).reshape(2, 40) * 7 % 500
    begins = torch.zeros(2, 40, dtype=torch.bool)
    begins[0, [0, 1, 9, 39]] = True
    # The first token of a row begins a sample whether or not it is said.
    begins[1, 17] = True
    found = []
    for how in ("auto", "flash"):
        model = Decoder(preset(name), Settings(attention=how, activation_checkpointing=checkpointing))
        materialize(model, CPU, seed=1, precision="fp32")
        loss = model(ids, ids.roll(-1, 1), begins)
        loss.backward()
        gradients = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        found.append((loss.detach(), gradients))
    (loss, gradients), (told, gradients_told) = found
    assert abs(told - loss) < 1e-5
    assert (gradients_told - gradients).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "checkpointing", "compile", "is_one"),
    [
        ("mistral-tiny", "selective", "none", False),
        pytest.param("mistral-tiny", "none", "none", True, marks=pytest.mark.soak),
        pytest.param("mistral-tiny", "full", "block", True, marks=pytest.mark.soak),
        pytest.param("qwen-3-tiny", "selective", "block", False, marks=pytest.mark.soak),
        pytest.param("llama-tiny", "full", "none", False, marks=pytest.mark.soak),
    ],
)
def test_flex_attention_has_the_losses_and_gradients_of_a_mask(
    name: str, checkpointing: Checkpointing, compile: Compile, is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own operation, traced as for a device and computed by its words for CPUs, where a check refuses
    it.
    """
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *of: None)
    monkeypatch.setattr(_OnlyKept, "supports_higher_order_operators", True, raising=False)
    traced = cache(partial(torch.compile, fullgraph=True, dynamic=False, backend="aot_eager"))
    monkeypatch.setattr(compiling, "compiled", traced)
    monkeypatch.setattr(decoder, "compiled", traced)
    torch._dynamo.reset()
    ids = torch.arange(2 * 40).reshape(2, 40) * 7 % 500
    models = [
        Decoder(preset(name), Settings(attention="auto")),
        Decoder(
            preset(name), Settings(attention="flex", activation_checkpointing=checkpointing, compile=compile)
        ),
    ]
    for model in models:
        materialize(model, CPU, seed=1, precision="fp32")
    for step in range(2):
        begins = torch.zeros(2, 40, dtype=torch.bool)
        begins[0, [0, 1, 9 + step, 39]] = True
        begins[1, 3] = True  # longer than mistral-tiny's window
        num_compiled, found = compiling.num_compiled(), []
        for model in models:
            model.zero_grad()
            loss = model(ids, ids.roll(-1, 1), None if is_one else begins)
            loss.backward()
            gradients = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
            found.append((loss.detach(), gradients))
        (loss, gradients), (flex_loss, flex_gradients) = found
        assert abs(flex_loss - loss) < 1e-5
        assert (flex_gradients - gradients).abs().max() < 1e-5
        # Other documents are the same programs.
        assert (compiling.num_compiled() > num_compiled) == (step == 0)
