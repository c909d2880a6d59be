"""The loss from hidden states and the head's weight: with all logits at once, or in chunks of tokens.

A training of 8,192 tokens on a vocabulary of 128,256 holds 4 GiB of fp32 logits, and their gradients, only to
compute one number. In chunks it never holds more than a chunk's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from jobs.training.task.job import tokens_per_chunk

_KEPT: ContextVar[list[Tensor] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping_row_losses() -> Iterator[list[Tensor]]:
    """While it lasts, each loss that is computed adds a tensor of (rows, 2) to the list: the sum of each
    row's losses, and how many tokens that row learns. They stay on the device.
    """
    kept: list[Tensor] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def whole_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy in fp32. All logits are held until the backward pass.

    A token without a label, which is then negative, counts as one whose loss is 0.
    """
    logits = F.linear(hidden, weight).flatten(0, 1).float()
    if (kept := _KEPT.get()) is not None:
        losses = F.cross_entropy(logits, labels.flatten(), reduction="none")
        kept.append(_by_row(losses, labels))
        return losses.sum() / labels.numel()
    return F.cross_entropy(logits, labels.flatten(), reduction="sum") / labels.numel()


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same mean, by chunks of tokens, whose gradients are computed in the same pass over the weight.

    Therefore nothing but the two gradients is held until the backward pass, and a weight that is gathered
    around the head's forward alone is never asked for again.
    """
    tokens = hidden.flatten(0, -2)
    kept = _KEPT.get()
    losses = None if kept is None else torch.empty(len(tokens), device=tokens.device)
    loss: Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's stub
        tokens, weight, labels.flatten(), torch.is_grad_enabled(), losses
    )
    if kept is not None and losses is not None:
        kept.append(_by_row(losses, labels))
    return loss


def _by_row(losses: Tensor, labels: Tensor) -> Tensor:
    sums = losses.detach().view(labels.shape).sum(dim=1)
    return torch.stack([sums, (labels >= 0).sum(dim=1).float()], dim=1)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Weight gradients are summed up in fp32, whatever the weight's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        labels: Tensor,
        with_gradients: bool,
        losses: Tensor | None = None,
    ) -> Tensor:
        num_tokens, size = len(tokens), tokens_per_chunk(len(weight))
        total = torch.zeros((), dtype=torch.float32, device=tokens.device)
        of_tokens, of_weight = torch.empty_like(tokens) if with_gradients else tokens, None
        for first in range(0, num_tokens, size):
            own, wanted = tokens[first : first + size], labels[first : first + size, None]
            of_own, slopes = _losses_and_slopes(F.linear(own, weight).float(), wanted, num_tokens)
            total += of_own.sum() / num_tokens
            if losses is not None:
                losses[first : first + size] = of_own[:, 0]
            if with_gradients:
                slopes = slopes.to(weight.dtype)
                of_tokens[first : first + size] = slopes @ weight
                of_weight = _added(of_weight, slopes.t(), own)
            del slopes  # Else they would be there beside the next chunk's logits.
        if of_weight is not None:
            ctx.gradients = of_tokens, of_weight.to(weight.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        of_tokens, of_weight = ctx.gradients
        del ctx.gradients  # They are scaled in place, so a second pass must not find them.
        return _scale(of_tokens, of_loss), _scale(of_weight, of_loss), None, None, None


def _losses_and_slopes(logits: Tensor, wanted: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """A chunk's losses. The gradient of their part of the mean over ``num_tokens`` takes the place of
    ``logits``.
    """
    has_label = (wanted >= 0).float()
    wanted = wanted.clamp(min=0)
    logits.sub_(logits.amax(dim=-1, keepdim=True))
    of_wanted = logits.gather(1, wanted)
    sums = logits.exp_().sum(dim=-1, keepdim=True)
    losses = (sums.log() - of_wanted) * has_label
    slopes = logits.mul_(has_label / (sums * num_tokens))
    slopes.scatter_add_(1, wanted, has_label * (-1 / num_tokens))
    return losses, slopes


def _added(sum_: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """``sum_`` plus the product of both, in fp32."""
    if sum_ is None:
        return (left @ right).float()
    return sum_.addmm_(left, right) if left.dtype == sum_.dtype else sum_.add_(left @ right)


def _scale(values: Tensor, factor: Tensor) -> Tensor:
    """Multiplies ``values`` in place, in fp32: bf16 has no third."""
    if values.dtype == torch.float32:
        return values.mul_(factor)
    for part in values.split(tokens_per_chunk(values.shape[1])):
        part.copy_(part.float() * factor)
    return values
