"""Computes kernels of a training on known numbers, and digests of the results.

Two healthy devices of one model with the same torch compute the same to the bit. Each kernel is computed
twice: what differs from itself has no digest.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from cluster.fingerprint.machine import processor_kind
from cluster.probe import door
from cluster.probe.node_facts import KernelDigest

_SIZE, _HEADS = 512, 8
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Unsteady(Exception):
    """A device computes a kernel otherwise the second time."""


def kernel_digests(device: torch.device) -> Iterator[KernelDigest]:
    """Raises ``Unsteady``. On a CPU the number of threads may decide the result: the caller sets it."""
    number, model = device.index or 0, model_of(device)
    for dtype, kind in _DTYPES.items():
        left, right = (_numbers(step).to(device, kind) for step in (7919, 104729))
        for name, kernel in _KERNELS.items():
            first, second = (_digest(kernel(left, right)) for _ in range(2))
            if first != second:
                raise Unsteady(f"device {number}: {dtype} {name} differs from one computation to the next")
            yield KernelDigest(device=number, kernel=f"{dtype} {name}", digest=first, model=model)


def model_of(device: torch.device) -> str:
    """What else than a device's health decides what it computes to the bit, but for torch and threads."""
    if device.type != "cpu":
        return door.name_of(device) or device.type
    return f"{processor_kind()} {torch.backends.cpu.get_cpu_capability()}"


def _numbers(step: int) -> Tensor:
    """Within -1 and 1, in another order for each ``step``; whole numbers make them, so all hosts alike."""
    order = torch.arange(_SIZE * _SIZE, dtype=torch.int64) * step % 65521
    return ((order - 32760).to(torch.float32) / 32768).reshape(_SIZE, _SIZE)


def _attention(left: Tensor, right: Tensor) -> Tensor:
    query, key = (one.reshape(1, _SIZE, _HEADS, -1).transpose(1, 2) for one in (left, right))
    return functional.scaled_dot_product_attention(query, key, query, is_causal=True)


def _digest(values: Tensor) -> str:
    data = values.reshape(-1).contiguous().cpu().view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()[:32]


_KERNELS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda left, right: left @ right,
    "softmax": lambda left, _: functional.softmax(left, dim=-1),
    "norm": lambda left, _: functional.rms_norm(left, left.shape[-1:]),
    "silu": lambda left, _: functional.silu(left),
    "attention": _attention,
}
