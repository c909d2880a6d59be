"""FSDP2: each rank holds a slice of every parameter and gathers one decoder block at a time."""

from math import prod

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from checkpointing.saving.snapshot import Piece
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill, unfilled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies.native import NativeEngine
from jobs.training.task.job import Recipe


def build(recipe: Recipe, device: torch.device) -> NativeEngine:
    """An engine that reduces gradients after every micro-batch, so that it only holds slices of them.

    Reducing after the last micro-batch alone would save communication, but hold whole gradients in fp32
    until then. At four ranks that is as much memory as the slices of all training state together.
    """
    decoder = unfilled(recipe, COMPUTE_DTYPE[recipe.precision])
    shard(decoder, recipe, device)
    decoder.to_empty(device=device)
    fill_shards(decoder, recipe)
    return NativeEngine(decoder, recipe, saved=own_rows, resumed=own_rows)


def shard(decoder: Decoder, recipe: Recipe, device: torch.device) -> None:
    mesh = init_device_mesh(device.type, (recipe.world_size,), mesh_dim_names=("data",))
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE[recipe.precision], reduce_dtype=torch.float32)
    for block in decoder.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(decoder, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def fill_shards(decoder: Decoder, recipe: Recipe) -> None:
    """Fills first values, one whole parameter at a time, of which this rank keeps its slice."""
    for name, parameter in decoder.named_parameters():
        assert isinstance(parameter, DTensor)
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        fill(name, whole, seed=recipe.seed, precision=recipe.precision)
        # src_data_rank=None: every rank has the whole values, so nothing is sent.
        slices = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(slices)


def own_rows(name: str, tensor: Tensor) -> Piece:
    """This rank's rows. FSDP2 cuts the first dimension, so they are one range of the flattened tensor."""
    assert isinstance(tensor, DTensor)
    mesh = tensor.device_mesh
    num_rows, *row = tensor.shape
    _, first = Shard.local_shard_size_and_offset(num_rows, mesh.size(), mesh.get_local_rank())
    return Piece(
        name=name, shape=tuple(tensor.shape), start=first * prod(row), values=tensor.to_local().view(-1)
    )
