"""Counts the memory that is really allocated for training state, and gives freed memory back."""

import gc
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from cluster.probe import door
from jobs.training.device.host_memory import give_back_freed_memory
from jobs.training.models import compiling


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory behind ``tensors`` on this rank. A storage with several views counts once, and whole."""
    storages = (local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Both moments of every parameter that has optimizer state."""
    return [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradients that a model holds, also those that FSDP2 has not summed over replicas yet."""
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*found, *_sums_of_one_replica(model)]


def _sums_of_one_replica(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                if group._partial_reduce_output is not None:
                    yield group._partial_reduce_output


def release_memory() -> None:
    """Frees compiled code and what only reference cycles hold; returns the memory that allocators cache."""
    compiling.forget()
    gc.collect()
    give_back_freed_memory()
    door.forget_freed()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
