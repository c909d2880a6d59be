"""One optimizer step: the only thing that is timed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jobs.training.data.synthetic import Batch
from jobs.training.strategies.contract import Engine


def train_step(engine: Engine, batches: Sequence[Batch]) -> Tensor:
    """Does forward and backward of each micro-batch, then the update; returns this rank's mean loss.

    The loss stays on the device: reading it here would make every step wait for the device.
    """
    losses = [
        engine.accumulate(ids, labels, last=number == len(batches))
        for number, (ids, labels) in enumerate(batches, start=1)
    ]
    engine.update()
    return torch.stack(losses).mean()
