"""Counts the memory that is really allocated for training state, and gives freed memory back."""

import gc
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from jobs.training.device.host_memory import give_back_freed_memory
from jobs.training.models import compiling


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory behind ``tensors`` on this rank. A storage with several views counts once, and whole."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Both moments of every parameter that has optimizer state."""
    return [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def release_memory() -> None:
    """Frees compiled code and what only reference cycles hold; returns the memory that allocators cache."""
    compiling.forget()
    gc.collect()
    give_back_freed_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
