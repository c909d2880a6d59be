"""Supplies the micro-batches of each step and times their copies to the device."""

import torch

from cluster.probe import door
from jobs.training.data.synthetic import Batch, make_batches
from jobs.training.task.job import Recipe


class BatchFeed:
    """One rank's batches. On a CPU nothing is copied, so ``bytes_per_step`` and ``copy_s()`` are None."""

    def __init__(self, recipe: Recipe, rank: int, device: torch.device) -> None:
        self._device = device
        self._batches = make_batches(recipe, rank, device)
        self._copies: list[tuple[door.Event, door.Event]] = []
        self.bytes_per_step = self._batches.h2d_bytes_per_step

    def of_step(self, step: int) -> list[Batch]:
        if self.bytes_per_step is None:
            return self._batches.load(step)
        start = door.event(self._device)
        batches = self._batches.load(step)
        self._copies.append((start, door.event(self._device)))
        return batches

    def forget_copies(self) -> None:
        self._copies.clear()

    def copy_s(self) -> float | None:
        """The seconds that all copies since ``forget_copies`` took. Waits for the device."""
        if self.bytes_per_step is None:
            return None
        door.synchronize(self._device)
        return float(sum(start.elapsed_time(end) for start, end in self._copies)) / 1e3
