"""What a precision means in dtypes, the same under every strategy.

``bf16``: the forward and backward pass compute in bf16 from bf16 parameters; master weights, moments,
accumulated gradients and their reductions are fp32.
"""

import torch

from jobs.training.task.job import Precision

COMPUTE_DTYPE: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def as_bf16(values: memoryview) -> memoryview:
    """The bytes of fp32 numbers as those of bf16 ones, each the nearest."""
    numbers = torch.frombuffer(values, dtype=torch.float32).to(torch.bfloat16)
    return numbers.view(torch.uint8).numpy().data
