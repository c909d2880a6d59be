"""Matrix products of the blocks in fp8, through torchao, forward and backward.

Inputs, weights and gradients are scaled and cast to fp8 around each product. Weights and results stay in
bf16. Scales are computed anew each time, so there is nothing to save.

* ``tensorwise`` has one scale for a tensor.
* ``rowwise`` has one for each row or column, rounded to a power of two.

On a CPU torchao emulates it: it rounds values to fp8 and multiplies them in bf16.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checkpointing.errors import Unfit
from cluster.probe import door
from jobs.training.task.job import FP8_MULTIPLE
from jobs.training.task.settings import Fp8

LinearProduct = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_LEAST_CAPABILITY = (8, 9)
_AMD_CHIPS = {"gfx942": "MI300", "gfx950": "MI350"}


def linear_product(how: Fp8) -> LinearProduct:
    """What computes a linear of a block from its input, its weight and its bias, all of one dtype."""
    return F.linear if how == "none" else _linear_in_fp8(how)


def prepare(how: Fp8, device: torch.device) -> None:
    """Raises ``Unfit`` where fp8 can't be had on ``device``."""
    if why_not := _why_not(how, device):
        raise Unfit(f"fp8: {how} can't be had here: {why_not}; expected fp8: none")


def _why_not(how: Fp8, device: torch.device) -> str | None:
    if device.type == "cuda":
        found = door.properties(device)
        chip = found.gcnArchName if torch.version.hip else None
        if why_not := lacking(found.name, (found.major, found.minor), chip):
            return why_not
    try:
        product = _linear_in_fp8(how)
    except ImportError as error:
        return f"torchao is needed ({error}): pip install -e '.[fp8]'"
    # A build of torch may lack the kernels that the device could run.
    rows = torch.ones(FP8_MULTIPLE, FP8_MULTIPLE, device=device, dtype=torch.bfloat16, requires_grad=True)
    try:
        product(rows, rows, None).backward(torch.ones_like(rows))
    except RuntimeError as error:
        return f"torch says: {str(error).splitlines()[0]}"
    return None


def lacking(device: str, capability: tuple[int, int], amd_chip: str | None) -> str | None:
    """What a device of that name lacks for fp8; None if nothing.

    ``amd_chip`` is the driver's name for the chip of an AMD device, such as ``gfx942:sramecc+:xnack-``.
    """
    if amd_chip is not None:
        chip = amd_chip.partition(":")[0]
        able = " or ".join(f"{name} ({series})" for name, series in _AMD_CHIPS.items())
        return None if chip in _AMD_CHIPS else f"{device} is {chip}, and fp8 needs {able}"
    if capability >= _LEAST_CAPABILITY:
        return None
    number, least = (f"sm{major}{minor}" for major, minor in (capability, _LEAST_CAPABILITY))
    return f"{device} is {number}, and fp8 needs {least} or newer"


@cache
def _linear_in_fp8(how: Fp8) -> LinearProduct:
    """Imports torchao, which looks at the device. One function for all linears, so blocks share a graph."""
    for name in ("torchao", "torch.utils._pytree"):
        # They warn of kernels for other builds of Python, and of torch's own future.
        logging.getLogger(name).setLevel(logging.ERROR)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

    usual = Float8LinearConfig.from_recipe_name(how)
    # Only converting a module works around a fault of Triton, with which gradients would not be finite.
    on_devices, on_cpus = (
        convert_to_float8_training(
            nn.Linear(FP8_MULTIPLE, FP8_MULTIPLE, bias=False, device="meta"), config=config
        )
        for config in (usual, replace(usual, emulate=True))
    )
    of_devices = on_devices.linear_mm_config, on_devices.config
    of_cpus = on_cpus.linear_mm_config, on_cpus.config

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product, config = of_cpus if input.device.type == "cpu" else of_devices
        out: Tensor = matmul_with_hp_or_float8_args.apply(input, weight.t(), product, config)
        return out if bias is None else out + bias

    return linear
