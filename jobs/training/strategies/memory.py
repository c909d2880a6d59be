"""Counts the memory of training state by what is really allocated, and gives it back."""

import gc
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from jobs.training.device.host_memory import give_back_freed_memory


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory behind ``tensors`` on this rank: views of one storage count once, and all of it."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Both moments of every parameter that was ever stepped."""
    return [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def release_memory() -> None:
    """Collect what only cycles hold, and give back what the allocators keep for later."""
    gc.collect()
    give_back_freed_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
