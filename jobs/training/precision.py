"""The dtypes that each precision stands for, the same under every strategy.

``bf16``: the forward and backward pass compute in bf16 from bf16 parameters; master weights, moments,
accumulated gradients and their reductions are fp32.
"""

import torch

from jobs.training.task.job import Precision

COMPUTE_DTYPE: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def as_bf16(values: memoryview) -> memoryview:
    """Converts the bytes of fp32 numbers to bytes of bf16 numbers, each rounded to the nearest."""
    numbers = torch.frombuffer(values, dtype=torch.float32).to(torch.bfloat16)
    return numbers.view(torch.uint8).numpy().data
