"""DDP: every rank holds the whole training state; gradients are averaged while the backward pass runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from jobs.training.models.decoder import Decoder
from jobs.training.models.init import materialize, unfilled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.contract import See
from jobs.training.strategies.native import NativeEngine
from jobs.training.strategies.state import Part, decoder_parameters
from jobs.training.task.job import Recipe


def build(recipe: Recipe, device: torch.device) -> NativeEngine:
    """An engine that communicates in a step's last micro-batch only; the others add to local gradients."""
    model = DistributedDataParallel(
        replica(recipe, device),
        gradient_as_bucket_view=True,  # Else each gradient is held a second time, in its bucket.
    )
    # One token is enough, but blocks and flex attention are compiled for each shape, fp8 takes not every
    # number of tokens, and cuDNN's attention no single one.
    takes_any = recipe.attention not in ("cudnn", "flex")
    is_for_any = recipe.compile == "none" and recipe.fp8 == "none" and takes_any
    shape = (1, 1) if is_for_any else (recipe.micro_batch, recipe.seq_len)
    settle_buckets(model, torch.zeros(shape, dtype=torch.int64, device=device))
    # If gradients were freed, the first of several micro-batches would allocate them again, beside buckets.
    defer = model.no_sync
    holds = range(dist.get_world_size())
    return NativeEngine(
        model, recipe, share, whole, unreduced=apart, holds=holds, defer=defer, keeps_gradients=True
    )


def settle_buckets(model: nn.Module, tokens: Tensor) -> None:
    """Runs one backward pass and drops its gradients, so that DDP settles the order of its buckets.

    DDP reorders its buckets after the first backward pass. With three ranks or more a sum depends on that
    order. Without this pass, the first step of a resumed training would differ by bits from the original.
    """
    model(tokens, tokens).backward()
    model.zero_grad(set_to_none=False)


@contextmanager
def apart(model: nn.Module, see: See) -> Iterator[None]:
    """See ``Unreduced``."""
    assert isinstance(model, DistributedDataParallel)
    with model.no_sync():
        yield
    for name, parameter in decoder_parameters(model):
        assert parameter.grad is not None
        see(f"gradients/{name}", parameter.grad)


def whole(parameter: Tensor) -> Part:
    return Part(start=0, offset=0, length=parameter.numel())


def share(parameter: Tensor, rank: int) -> Part:
    """A rank's part of a tensor that all ranks hold: each rank saves 1 / ``world_size`` of it."""
    return whole(parameter).share(rank, dist.get_world_size())


def replica(recipe: Recipe, device: torch.device) -> Decoder:
    """The whole model with fp32 parameters, which computes in the recipe's precision."""
    decoder = unfilled(recipe, COMPUTE_DTYPE[recipe.precision])
    materialize(decoder, device, seed=recipe.seed, precision=recipe.precision)
    return decoder
