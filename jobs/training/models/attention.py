"""Softmax attention, and which kernel computes it.

``auto`` leaves the choice to torch, which silently takes a slow kernel where no fast one can be had. So
``kernel_of`` finds out what runs, for the row. Any other choice is that kernel, or an error before a step.
"""

from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from checkpointing.errors import Unfit
from jobs.training.models import compiling
from jobs.training.models.checkpointing import keep_outputs_of
from jobs.training.task.job import Recipe
from jobs.training.task.presets import ModelConfig
from jobs.training.task.settings import Attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# What each token sees: numbers that are added to scores, where samples begin, or flex attention's own.
Mask: TypeAlias = "Tensor | BlockMask | None"

_BACKENDS: dict[Attention, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# By the operation that each kernel is; ``math`` is several, none of which is here.
_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_varlen_attn": "flash of variable lengths",
}
# Long enough for every kernel, short enough for the scores of all heads.
_TRIED_LENGTH = 128


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, how: Attention, grouped: bool) -> Tensor:
    """Softmax attention, causal or by ``mask``. ``grouped``: see ``takes_groups``.

    A ``mask`` of int32 holds where samples begin, if all rows lie one behind the other, and where the last
    one ends. Only where ``takes_begins``. ``flex`` goes by a ``block_mask`` alone.
    """
    if how == "flex":
        return _attend_by_blocks(q, k, v, mask)
    assert mask is None or isinstance(mask, Tensor)
    if mask is not None and mask.dtype == torch.int32:
        return _attend_apart(q, k, v, mask)
    grouped = grouped and how != "efficient"  # That kernel takes no groups on any device.
    if not grouped:
        num_shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(num_shared, dim=1), v.repeat_interleave(num_shared, dim=1)
    with nullcontext() if how == "auto" else sdpa_kernel(_BACKENDS[how]):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )


def takes_begins(how: Attention, device: torch.device, mask: Tensor | None) -> bool:
    """Whether samples in one row are kept apart by a kernel that is told where they begin, without a mask.

    ``mask`` is that of a sliding window, which goes by a mask alone.
    """
    return how == "flash" and device.type == "cuda" and mask is None


@cache
def prepare_to_attend_apart() -> None:
    """To be called before ``attend`` is given where samples begin. It loads for seconds, which nobody else
    should wait for.
    """
    import torch.nn.attention.varlen

    keep_outputs_of(torch.ops.torch_attn._varlen_attn.default)


def block_mask(
    length: int, device: torch.device, window: int | None, first: Tensor | None = None
) -> "BlockMask":
    """What each token sees: itself, and the tokens before it which the ``window`` and its sample hold.

    ``first`` has for each of (batch, length) the place of its sample's first token; None if a row is one.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        if window is not None:
            seen = seen & (query - key < window)
        return seen if first is None else seen & (first[batch, query] == first[batch, key])

    num_rows = None if first is None else first.shape[0]
    # Uncompiled it would hold a number for each pair of tokens.
    made = compiling.compiled(create_block_mask)(sees, num_rows, None, length, length, device=device)
    mask: BlockMask = made
    return mask


def takes_groups(config: ModelConfig, device: torch.device, dtype: torch.dtype, mask: Tensor | None) -> bool:
    """Whether a fast kernel takes key and value heads as they are, unrepeated.

    On CUDA and ROCm only the flash kernel does, and neither for fp32 nor with a mask. In those cases
    ``enable_gqa`` would silently choose the slow kernel, which holds all scores.
    """
    if device.type != "cuda":
        return True
    q, k = _heads(config, config.num_heads, device, dtype), _heads(config, config.num_kv_heads, device, dtype)
    return can_use_flash_attention(SDPAParams(q, k, k, mask, 0.0, mask is None, True))


def kernel_of(
    recipe: Recipe, device: torch.device, dtype: torch.dtype, *, within_samples: bool = False
) -> str:
    """The kernel that a training runs: ``flash``, ``efficient``, ``cudnn``, ``math`` or ``flex``.

    With torch's library behind flash on ROCm. ``within_samples``: a row is several samples. Raises ``Unfit``
    if what the recipe asks for can't be had.
    """
    config, how = recipe.model, recipe.attention
    if how == "flex":
        return _flex(config, device, dtype)
    has_window = config.sliding_window is not None and recipe.seq_len > config.sliding_window
    is_masked = has_window or within_samples
    q, k = _heads(config, config.num_heads, device, dtype), _heads(config, config.num_kv_heads, device, dtype)
    mask = torch.zeros(_TRIED_LENGTH, _TRIED_LENGTH, device=device, dtype=dtype) if is_masked else None
    if within_samples and takes_begins(how, device, mask if has_window else None):
        mask = torch.tensor([0, _TRIED_LENGTH], device=device, dtype=torch.int32)
    watching = _Watching()  # type: ignore[no-untyped-call]  # torch's base class
    with watching:
        try:
            attend(q, k, k, mask, how, takes_groups(config, device, dtype, mask))
        except RuntimeError:
            what = f"{str(dtype).removeprefix('torch.')}, heads of {config.head_dim} on {device.type}"
            masked = " and a sliding window" if has_window else ""
            masked += " and several samples in a row" if within_samples else ""
            raise Unfit(
                f"attention: {how} can't be had for {what}{masked}; expected auto, or another kernel"
            ) from None
    is_of_a_library = watching.kernel.startswith("flash") and torch.version.hip
    return f"{watching.kernel}{_rocm_library() if is_of_a_library else ''}"


@cache
def _flex(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str:
    if device.type == "cpu":
        raise Unfit("attention: flex can't be had on cpu, where it has no backward pass; expected auto")
    compiling.prepare(device, "attention: flex", "auto")
    q, k = _heads(config, config.num_heads, device, dtype), _heads(config, config.num_kv_heads, device, dtype)
    try:
        attend(q, k, k, block_mask(_TRIED_LENGTH, device, None), "flex", grouped=True).sum().backward()
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise Unfit(f"attention: flex can't be had here: {line}; expected auto, or another kernel") from None
    return "flex"


def _attend_by_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    # Within a block that is being compiled it is a part of that.
    run: Any = flex_attention if torch.compiler.is_compiling() else compiling.compiled(flex_attention)
    # Torch's own choice may be a kernel without a backward pass.
    out: Tensor = run(q, k, v, block_mask=mask, enable_gqa=True, kernel_options={"BACKEND": "TRITON"})
    return out


def _attend_apart(q: Tensor, k: Tensor, v: Tensor, begins: Tensor) -> Tensor:
    batch, _, length, _ = q.shape
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (heads.transpose(1, 2).flatten(0, 1) for heads in (q, k, v))
    causal = (-1, 0)
    mixed = varlen_attn(q, k, v, begins, begins, length, length, window_size=causal, enable_gqa=True)
    assert isinstance(mixed, Tensor)  # not with what it might give besides
    out: Tensor = mixed.unflatten(0, (batch, length)).transpose(1, 2)
    return out


def _heads(config: ModelConfig, number: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    shape = (1, number, _TRIED_LENGTH, config.head_dim)
    return torch.zeros(shape, device=device, dtype=dtype, requires_grad=True)


def _rocm_library() -> str:
    return f" ({torch.backends.cuda.preferred_rocm_fa_library()})".replace("_ROCmFABackend.", "").lower()


class _Watching(TorchDispatchMode):
    kernel = "math"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        self.kernel = _KERNELS.get(name, self.kernel)
        return func(*args, **(kwargs or {}))
