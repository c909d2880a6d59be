"""One optimizer step: the only thing that is timed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from jobs.training.data.synthetic import Batch
from jobs.training.strategies.contract import Engine


def train_step(
    engine: Engine,
    batches: Sequence[Batch],
    weight: float = 1.0,
    before_update: Callable[[], None] = lambda: None,
) -> Tensor:
    """Does forward and backward of each micro-batch, then the update; returns this rank's mean loss.

    Only the update changes weights and moments.

    Each loss is multiplied by ``weight``, which is not 1 where not all tokens are trained on.

    The loss stays on the device: reading it here would make every step wait for the device.
    """
    losses = [
        engine.accumulate(*batch, last=number == len(batches), weight=weight)
        for number, batch in enumerate(batches, start=1)
    ]
    before_update()
    engine.update()
    return torch.stack(losses).mean()
