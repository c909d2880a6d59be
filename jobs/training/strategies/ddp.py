"""Everything on every rank; gradients are averaged while the backward pass still runs."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from jobs.training.job import Precision, Recipe
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import materialize
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.native import NativeEngine


def build(recipe: Recipe, device: torch.device) -> NativeEngine:
    """An engine whose micro-batches but the last add to the local gradients without any communication."""
    model = DistributedDataParallel(
        replica(recipe, device),
        gradient_as_bucket_view=True,  # Else each gradient lives twice: in its bucket too.
    )
    return NativeEngine(model, recipe, defer=model.no_sync)


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
