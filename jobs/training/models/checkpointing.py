"""Activation checkpointing of one block: what the backward pass computes again instead of keeping it.

* ``none`` keeps all that the backward pass reads.
* ``selective`` keeps the outputs of matrix products and of attention, and computes the cheap rest again.
* ``full`` keeps the block's input alone, and computes the whole block again.

What is computed again is computed in the same way, so losses and gradients are equal to the bit.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
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


def keep_outputs_of(operation: torch._ops.OpOverload) -> None:
    """Of one that is not there until its module is loaded."""
    if operation not in _KEPT:
        _KEPT.append(operation)


def checkpointed(how: Checkpointing, block: Callable[..., Tensor], *inputs: object) -> Tensor:
    """The output of ``block``, which must draw no random numbers: no generator's state is kept for it."""
    if how == "none" or not torch.is_grad_enabled():
        return block(*inputs)
    # Compiling knows only these calls: ``context_fn`` must not be given where it is torch's own.
    if how == "full":
        out: Tensor = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
    else:
        contexts = _selective_contexts if torch.compiler.is_compiling() else _contexts_of_kept
        out = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return out


_selective_contexts = partial(create_selective_checkpoint_contexts, _KEPT)


def _contexts_of_kept() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    keeping, giving = _selective_contexts()
    return _OnlyKept(keeping), _OnlyKept(giving)


class _OnlyKept(TorchDispatchMode):
    """Shows ``mode`` nothing but the operations whose outputs are kept.

    Torch's modes demand that a block does the same operations again. A strategy's hooks inside of a block
    don't: zero3 gathers weights ahead of their use, in an order that differs from pass to pass.
    """

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's stub
        self._mode = mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _KEPT:
            return self._mode.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else torch would compile nothing within a block."""
        return True
