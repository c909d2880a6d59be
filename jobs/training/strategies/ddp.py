"""Everything on every rank; gradients are averaged while the backward pass still runs."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from checkpointing.saving.snapshot import Piece
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import materialize
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.job import Precision, Recipe


def build(recipe: Recipe, device: torch.device) -> NativeEngine:
    """An engine whose micro-batches but the last add to the local gradients without any communication."""
    model = DistributedDataParallel(
        replica(recipe, device),
        gradient_as_bucket_view=True,  # Else each gradient lives twice: in its bucket too.
    )
    settle_buckets(model, device)
    # A gradient that is given up would be made anew beside its bucket by the first of several micro-batches.
    return NativeEngine(model, recipe, saved=share, resumed=whole, defer=model.no_sync, keeps_gradients=True)


def settle_buckets(model: nn.Module, device: torch.device) -> None:
    """Lets DDP see one backward pass, of one token, whose gradients count for nothing.

    DDP orders its buckets anew after the first, and from three ranks on a sum depends on that order: the
    first step of a resumed training would differ by bits from the one that it stands for.
    """
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    model(token, token).backward()
    model.zero_grad(set_to_none=False)


def whole(name: str, tensor: Tensor) -> Piece:
    return Piece(name=name, shape=tuple(tensor.shape), start=0, values=tensor.view(-1))


def share(name: str, tensor: Tensor) -> Piece:
    """All ranks hold the same, so each saves one part of it: as little as under any other strategy."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    start, end = (tensor.numel() * place // world_size for place in (rank, rank + 1))
    return Piece(name=name, shape=tuple(tensor.shape), start=start, values=tensor.view(-1)[start:end])


def replica(recipe: Recipe, device: torch.device) -> nn.Module:
    """The whole model with fp32 parameters, computing in the recipe's precision."""
    with torch.device("meta"):
        decoder = Decoder(recipe.model)
    materialize(decoder, device, seed=recipe.seed, precision=recipe.precision)
    return decoder if recipe.precision == "fp32" else InPrecision(decoder, recipe.precision)


class InPrecision(nn.Module):
    """Computes with copies of the fp32 parameters in a lower precision.

    Not autocast: that picks a dtype per operation, while under FSDP2 and ZeRO every operation sees the
    parameters in one. Gradients arrive through the copies at the fp32 parameters, in fp32.
    """

    def __init__(self, decoder: Decoder, precision: Precision) -> None:
        super().__init__()
        self.decoder = decoder
        self._dtype = COMPUTE_DTYPE[precision]

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        copies = {name: value.to(self._dtype) for name, value in self.decoder.named_parameters()}
        loss: Tensor = functional_call(self.decoder, copies, (ids, labels))
        return loss
