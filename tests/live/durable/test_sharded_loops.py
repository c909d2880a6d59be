"""Loops whose model is sharded by torch's ``fully_shard``: each rank saves and loads its own rows."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from jobs import durable
from tests.live.ranks import run_ranks

pytestmark = pytest.mark.soak

STEPS, HALF = 6, 3


def trained(store: str, num_steps: int, num_copies: int, *, cut: int = 0) -> dict[str, list[float]]:
    """Trains as one rank; returns every tensor of the state, whole. No number of ranks divides the rows."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7), nn.Dropout(0.2), nn.Linear(7, 1))
    copies, size = num_copies, dist.get_world_size() // num_copies
    shape, names = ((copies, size), ("copies", "rows")) if copies > 1 else ((size,), ("rows",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda one: Shard(cut) if one.shape == (7, 4) else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(32, 4)
    state = {"model": model, "optimizer": optimizer}
    with durable.run("sharded", store=store, state=state) as run:
        for step in run.steps(num_steps):
            # The same on all ranks, so that every number of them learns the same.
            loss = (model(data[step * 4 : step * 4 + 4]) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.record(loss=loss)
    found = dict(model.state_dict())
    for number, parameter in optimizer.state_dict()["state"].items():
        found |= {f"{number}/{key}": value for key, value in parameter.items()}
    return {name: _whole(value).flatten().tolist() for name, value in found.items()}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_a_sharded_loop_goes_on_to_the_bit_and_its_state_fits_any_number_of_ranks(tmp_path: Path) -> None:
    """Also where replicas hold the same rows, and where a rank holds none."""

    def ranks(store: str, steps: int, num_ranks: int, copies: int = 1) -> dict[str, list[float]]:
        args = (str(tmp_path / store), steps, copies)
        return run_ranks(trained, *args, num_ranks=num_ranks, tmp_path=tmp_path)[0]

    left_alone = ranks("left alone", STEPS, 2)
    half = ranks("resumed", HALF, 2)
    assert ranks("resumed", HALF, 4, copies=2) == half
    assert ranks("resumed", HALF, 3) == half
    assert ranks("resumed", STEPS, 2) == left_alone


def test_a_model_that_is_cut_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"state/model/0\.weight: is cut over ranks as S\(1\); expected"):
        run_ranks(_cut_into_columns, str(tmp_path / "store"), num_ranks=2, tmp_path=tmp_path)


def _cut_into_columns(store: str) -> None:
    trained(store, STEPS, 1, cut=1)
