"""Activation checkpointing of one block: what the backward pass computes again instead of keeping it.

* ``none`` keeps all that the backward pass reads.
* ``selective`` keeps the outputs of matrix products and of attention, and computes the cheap rest again.
* ``full`` keeps the block's input alone, and computes the whole block again.

What is computed again is computed in the same way, so losses and gradients are equal to the bit.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from jobs.training.task.settings import Checkpointing

_KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]


def checkpointed(how: Checkpointing, block: Callable[..., Tensor], *inputs: Tensor | bool | None) -> Tensor:
    """The output of ``block``, which must draw no random numbers: no generator's state is kept for it."""
    if how == "none" or not torch.is_grad_enabled():
        return block(*inputs)
    # Compiling knows only these two calls: ``context_fn`` must not be given where it is torch's own.
    if how == "full":
        out: Tensor = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
    else:
        out = checkpoint(
            block, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=_selective_contexts
        )
    return out


_selective_contexts = partial(create_selective_checkpoint_contexts, _KEPT)
