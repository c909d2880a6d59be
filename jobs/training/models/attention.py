"""Softmax attention, and which kernel computes it.

``auto`` leaves the choice to torch, which silently takes a slow kernel where no fast one can be had. So
``kernel_of`` finds out what runs, for the row. Any other choice is that kernel, or an error before a step.
"""

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from checkpointing.errors import Unfit
from jobs.training.models.checkpointing import keep_outputs_of
from jobs.training.task.job import Recipe
from jobs.training.task.presets import ModelConfig
from jobs.training.task.settings import Attention

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


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Attention, grouped: bool) -> Tensor:
    """Softmax attention, causal or by ``mask``. ``grouped``: see ``takes_groups``.

    A ``mask`` of int32 holds where samples begin, if all rows lie one behind the other, and where the last
    one ends. Only where ``takes_begins``.
    """
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
    """The kernel that a training runs: ``flash``, ``efficient``, ``cudnn`` or ``math``.

    With torch's library behind flash on ROCm. ``within_samples``: a row is several samples. Raises ``Unfit``
    if what the recipe asks for can't be had.
    """
    config, how = recipe.model, recipe.attention
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
