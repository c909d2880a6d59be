"""Gives each parameter its first value, which depends on the seed and the parameter's name alone.

So the values are the same in any order of building, on any number of ranks and under any strategy. They
differ between kinds of devices, since each kind draws its own random numbers.
"""

import hashlib

import torch
from torch import Tensor

from jobs.training.models.decoder import Decoder
from jobs.training.task.job import Precision, Recipe


def unfilled(recipe: Recipe, compute_dtype: torch.dtype) -> Decoder:
    """The recipe's decoder on ``meta``, with fp32 parameters."""
    with torch.device("meta"):
        return Decoder(recipe.model, recipe, compute_dtype)


def materialize(decoder: Decoder, device: torch.device, *, seed: int, precision: Precision) -> None:
    """Gives a decoder that was built on ``meta`` its memory on ``device`` and its first values."""
    decoder.to_empty(device=device)
    for name, parameter in decoder.named_parameters():
        fill(name, parameter, seed=seed, precision=precision, std=decoder.config.init_std)


@torch.no_grad()
def fill(name: str, tensor: Tensor, *, seed: int, precision: Precision, std: float = 0.02) -> None:
    """Writes the first value of the whole parameter ``name`` into ``tensor``, whatever its dtype.

    ``std`` is the model's ``init_std``.

    In bf16 all values can be held exactly by bf16, so fp32 masters and bf16 copies start out equal.
    """
    if name.endswith("norm.weight"):
        tensor.fill_(1.0)
    elif name.endswith(".bias"):
        tensor.zero_()
    else:
        generator = torch.Generator(tensor.device).manual_seed(_seed_of(name, seed))
        value = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
        value.normal_(0.0, std, generator=generator)
        tensor.copy_(value.bfloat16() if precision == "bf16" else value)


def _seed_of(name: str, seed: int) -> int:
    """A generator's seed for one parameter, by a hash: nearby seeds must not give nearby streams."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
