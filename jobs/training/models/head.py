"""The loss from hidden states and the head's weight: with all logits at once, or in chunks of tokens.

A training of 8,192 tokens on a vocabulary of 128,256 holds 4 GiB of fp32 logits, and their gradients, only to
compute one number. In chunks it never holds more than a chunk's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from jobs.training.task.job import tokens_per_chunk


def whole_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy in fp32. All logits are held until the backward pass."""
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), labels.flatten())


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same mean, by chunks of tokens, whose gradients are computed in the same pass over the weight.

    Therefore nothing but the two gradients is held until the backward pass, and a weight that is gathered
    around the head's forward alone is never asked for again.
    """
    tokens, labels = hidden.flatten(0, -2), labels.flatten()
    loss: Tensor = _ChunkedCrossEntropy.apply(tokens, weight, labels, torch.is_grad_enabled())  # type: ignore[no-untyped-call]  # torch's stub
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Weight gradients are summed up in fp32, whatever the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, labels: Tensor, with_gradients: bool) -> Tensor:
        num_tokens, size = len(tokens), tokens_per_chunk(len(weight))
        total = torch.zeros((), dtype=torch.float32, device=tokens.device)
        of_tokens, of_weight = torch.empty_like(tokens) if with_gradients else tokens, None
        for first in range(0, num_tokens, size):
            own, wanted = tokens[first : first + size], labels[first : first + size]
            logits = F.linear(own, weight).float()
            log_sums = logits.logsumexp(dim=-1)
            total += (log_sums - logits.gather(1, wanted[:, None])[:, 0]).sum()
            if with_gradients:
                # The gradient of the mean: softmax minus one-hot, over the number of tokens, in place.
                slopes = logits.sub_(log_sums[:, None]).exp_()
                slopes[torch.arange(len(own), device=own.device), wanted] -= 1.0
                slopes = slopes.div_(num_tokens).to(weight.dtype)
                of_tokens[first : first + size] = slopes @ weight
                product = slopes.t() @ own
                of_weight = product.float() if of_weight is None else of_weight.add_(product)
                del slopes, product
            del logits  # Else they would be there beside the next chunk's.
        if of_weight is not None:
            ctx.save_for_backward(of_tokens, of_weight.to(weight.dtype))
        return total / num_tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_tokens, of_weight = ctx.saved_tensors
        return _scaled(of_tokens, of_loss), _scaled(of_weight, of_loss), None, None


def _scaled(values: Tensor, factor: Tensor) -> Tensor:
    """``values`` times ``factor`` in their dtype, multiplied in fp32: bf16 has no third."""
    if values.dtype == torch.float32:
        return values * factor
    scaled, rows = torch.empty_like(values), tokens_per_chunk(values.shape[1])
    for part, own in zip(values.split(rows), scaled.split(rows), strict=True):
        own.copy_(part.float() * factor)
    return scaled
