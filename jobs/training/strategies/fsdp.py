"""FSDP2: each rank holds a slice of every parameter and gathers one decoder block at a time.

With ``shard_within: N`` (HSDP) each group of N neighbouring ranks holds all slices, and gathers among itself.
Groups are replicas: ranks with the same slice in all groups sum their gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.hooks import RemovableHandle

from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill, unfilled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.contract import See
from jobs.training.strategies.native import NativeEngine
from jobs.training.strategies.state import Part
from jobs.training.task.job import Recipe


def build(recipe: Recipe, device: torch.device) -> NativeEngine:
    """An engine that reduces gradients after every micro-batch, so that it only holds slices of them.

    Reducing after the last micro-batch alone would save communication, but hold whole gradients in fp32
    until then. At four ranks that is as much memory as the slices of all training state together. Over
    replicas it reduces them with the last micro-batch: what waits for that are slices.
    """
    decoder = unfilled(recipe, COMPUTE_DTYPE[recipe.precision])
    shard(decoder, recipe, device)
    decoder.to_empty(device=device)
    fill_shards(decoder, recipe)
    assert isinstance(decoder, FSDPModule)
    defer = partial(apart_from_replicas, decoder) if recipe.num_copies > 1 else nullcontext
    holds = range(dist.get_rank() % recipe.ranks_per_copy, recipe.world_size, recipe.ranks_per_copy)
    return NativeEngine(decoder, recipe, share, own_rows, unreduced=hooked, holds=holds, defer=defer)


def shard(decoder: Decoder, recipe: Recipe, device: torch.device) -> None:
    mesh = mesh_of(recipe, device)
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE[recipe.precision], reduce_dtype=torch.float32)
    for block in decoder.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(decoder, mesh=mesh, mp_policy=policy)


def mesh_of(recipe: Recipe, device: torch.device) -> DeviceMesh:
    """All ranks in one row, or in rows of ``shard_within``."""
    if recipe.num_copies == 1:
        return init_device_mesh(device.type, (recipe.world_size,), mesh_dim_names=("shard",))
    assert dist.group.WORLD is not None
    return _mesh_of_rows(device.type, recipe.num_copies, recipe.ranks_per_copy, dist.group.WORLD)


# Kept for all engines of a process: its process groups can't be ended safely once another rank has failed.
@cache
def _mesh_of_rows(device_type: str, num_rows: int, row: int, world: dist.ProcessGroup) -> DeviceMesh:
    assert num_rows * row == world.size()
    return init_device_mesh(device_type, (num_rows, row), mesh_dim_names=("replicate", "shard"))


@contextmanager
def apart_from_replicas(decoder: FSDPModule) -> Iterator[None]:
    """Inside, a backward pass sums gradients over the neighbours alone."""
    decoder.set_requires_all_reduce(False)
    try:
        yield
    finally:
        decoder.set_requires_all_reduce(True)


@contextmanager
def hooked(model: nn.Module, see: See) -> Iterator[None]:
    """See ``Unreduced``. Parameters are whole, and are shown, inside the pass of who gathers them alone."""
    hooks: dict[str, RemovableHandle] = {}

    def hook(prefix: str, module: nn.Module, _: object) -> None:
        for name, parameter in module.named_parameters(prefix=prefix):
            # Those of modules below are still slices. Computing again in a backward pass comes here again.
            if not isinstance(parameter, DTensor) and name not in hooks:
                # A copy: who lends a CPU's memory to others, as to a digest, forbids FSDP2 to free it.
                see(f"parameters/{name}", parameter.detach().clone())
                hooks[name] = parameter.register_hook(partial(see, f"gradients/{name}"))

    on_modules = [
        module.register_forward_pre_hook(partial(hook, prefix))
        for prefix, module in model.named_modules()
        if isinstance(module, FSDPModule) and isinstance(module, nn.Module)
    ]
    try:
        yield
    finally:
        for handle in (*on_modules, *hooks.values()):
            handle.remove()


@torch.no_grad()
def fill_shards(decoder: Decoder, recipe: Recipe) -> None:
    """Fills first values, one whole parameter at a time, of which this rank keeps its slice."""
    for name, parameter in decoder.named_parameters():
        assert isinstance(parameter, DTensor)
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        fill(name, whole, seed=recipe.seed, precision=recipe.precision, std=recipe.model.init_std)
        # src_data_rank=None: every rank has the whole values, so nothing is sent.
        slices = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(slices)


def own_rows(parameter: Tensor) -> Part:
    """This rank's rows. FSDP2 cuts the first dimension, so they are one range of the flattened tensor."""
    assert isinstance(parameter, DTensor)
    shards = parameter.device_mesh["shard"]
    num_rows, *row = parameter.shape
    count, first = Shard.local_shard_size_and_offset(num_rows, shards.size(), shards.get_local_rank())
    return Part(start=first * prod(row), offset=0, length=count * prod(row))


def share(parameter: Tensor, rank: int) -> Part:
    """The part of this rank's rows that ``rank``, which holds them too, saves: all, or an equal part beside
    the replicas' parts.
    """
    assert isinstance(parameter, DTensor)
    mesh = parameter.device_mesh
    if mesh.ndim == 1:
        return own_rows(parameter)
    return own_rows(parameter).share(rank // mesh.size(1), mesh.size(0))
