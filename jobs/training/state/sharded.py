"""Tensors of which each rank holds some rows, as under torch's ``fully_shard`` (FSDP2).

Rows are those of the first dimension: a rank's rows are one range of the flattened tensor, so that any number
of ranks can load what another number saved.
"""

from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard


def is_by_rows(tensor: DTensor) -> bool:
    """Whether it is cut into rows along one dimension of the mesh at most, and whole along the others."""
    cuts = [placement for placement in tensor.placements if not isinstance(placement, Replicate)]
    # Subclasses of Shard cut otherwise.
    return not cuts or (len(cuts) == 1 and type(cuts[0]) is Shard and cuts[0].dim == 0)


def own_range(tensor: DTensor) -> tuple[int, int]:
    """The first element and the number of elements that this rank holds, of the flattened tensor."""
    cut = _cut(tensor)
    if cut is None:
        return 0, tensor.numel()
    num_rows, *row = tensor.shape
    mesh = tensor.device_mesh
    count, first = Shard.local_shard_size_and_offset(num_rows, mesh.size(cut), mesh.get_local_rank(cut))
    return first * prod(row), count * prod(row)


def is_first_copy(tensor: DTensor) -> bool:
    """Whether this rank is the first of those that hold the same rows."""
    mesh, cut = tensor.device_mesh, _cut(tensor)
    return all(mesh.get_local_rank(dim) == 0 for dim in range(mesh.ndim) if dim != cut)


def sharded_like(model: DTensor, rows: Tensor) -> DTensor:
    """This rank's part of a new tensor that lies as ``model`` does. ``rows`` are its flattened elements."""
    held = model.to_local()
    return DTensor.from_local(
        rows.view(held.shape).to(held.device),
        model.device_mesh,
        model.placements,
        run_check=False,
        shape=model.shape,
        stride=torch.empty(model.shape, device="meta").stride(),
    )


def _cut(tensor: DTensor) -> int | None:
    """The dimension of the mesh along which the rows are cut."""
    cuts = (dim for dim, placement in enumerate(tensor.placements) if isinstance(placement, Shard))
    return next(cuts, None)
