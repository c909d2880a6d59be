"""Sends known numbers by the collectives of a training, whose results each rank knows beforehand to the bit.

They are whole numbers whose sums fp32 holds exactly, so the order in which ranks add them does not matter.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from cluster.probe import door
from jobs.training.integrity.comparison import Exchange

_NUM_SUMMED = 2**14
_NUM_SENT = 2**10
# Up to here fp32 holds each whole number.
_LARGEST = 2**24
_NUM_OFFSETS = 2**10


def exchanged(rank: int, world_size: int, number: int) -> Exchange:
    """What arrived on this rank in round ``number``. Every rank must call it."""
    device = door.collective_device(dist.get_backend())
    offsets = sum(one % _NUM_OFFSETS for one in range(world_size))
    common = _common((_LARGEST - offsets) // world_size, number)
    summed = (common + rank % _NUM_OFFSETS).to(device)
    dist.all_reduce(summed)
    sent = _message(rank, number).to(device)
    rows = [torch.zeros_like(sent) for _ in range(world_size)]
    dist.all_gather(rows, sent)
    return Exchange(
        wrong_senders=tuple(
            sender for sender, row in enumerate(rows) if not torch.equal(row.cpu(), _message(sender, number))
        ),
        is_sum_right=torch.equal(summed.cpu(), world_size * common + offsets),
    )


def _common(most: int, number: int) -> Tensor:
    """Whole numbers below ``most``, the same on all ranks."""
    order = torch.Generator().manual_seed(number)
    return torch.randint(max(1, most), (_NUM_SUMMED,), generator=order).float()


def _message(rank: int, number: int) -> Tensor:
    """Other numbers for each rank and round."""
    return (torch.arange(1, _NUM_SENT + 1) * (2 * rank + 1) * (2 * number + 1) % _LARGEST).float()
