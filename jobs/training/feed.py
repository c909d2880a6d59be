"""The micro-batches of a step, with the bytes and the time of their copies to the device."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jobs.training.data import batch
from jobs.training.job import Recipe


class Feed:
    """Batches of one rank. Where nothing is copied (CPU) there is nothing to time: None."""

    def __init__(self, recipe: Recipe, rank: int, device: torch.device) -> None:
        self._recipe = recipe
        self._rank = rank
        self._device = device
        self._copies: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.bytes_per_step: int | None = None

    def of_step(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        for micro in range(self._recipe.grad_accum):
            yield self._one(step, micro)

    def forget_copies(self) -> None:
        self._copies.clear()

    def copy_s(self) -> float | None:
        """Seconds that all copies since ``forget_copies`` took. Waits for the device."""
        if not self._copies:
            return None
        torch.cuda.synchronize()
        return sum(start.elapsed_time(end) for start, end in self._copies) / 1e3

    def _one(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        if self._device.type == "cpu":
            return batch(self._recipe, self._rank, step, micro, self._device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        ids, labels = batch(self._recipe, self._rank, step, micro, self._device)
        end.record()
        self._copies.append((start, end))
        self.bytes_per_step = (ids.nbytes + labels.nbytes) * self._recipe.grad_accum
        return ids, labels
