"""What a long run reads: each sample once per epoch, at any world size. Synthetic so far."""

import torch
from torch import Tensor

from jobs.training.context import Context
from jobs.training.data import Batch, sample
from jobs.training.stream import epoch_ended, sample_at
from jobs.training.task import Task


class Samples:
    """One rank's share of each global batch."""

    def __init__(self, task: Task, context: Context) -> None:
        self._task = task
        self._rank = context.rank
        self._device = context.device

    def rows(self, position: int) -> list[Tensor]:
        """On the host, the micro-batches of the step that begins after ``position`` samples."""
        recipe = self._task.recipe
        found = []
        for micro in range(recipe.grad_accum):
            first = position + (micro * recipe.world_size + self._rank) * recipe.micro_batch
            found.append(torch.stack([self._sample(first + index) for index in range(recipe.micro_batch)]))
        return found

    def on_device(self, rows: list[Tensor]) -> list[Batch]:
        """Waits until the device has done what it was given before: copying does."""
        there = [one.to(self._device) for one in rows]
        return [(one[:, :-1], one[:, 1:]) for one in there]

    def held_out(self) -> list[Batch]:
        """This rank's micro-batches of the samples behind the last one that is trained on."""
        recipe, first = self._task.recipe, self._task.num_samples
        per_pass = recipe.world_size * recipe.micro_batch
        batches = []
        for number in range(first, first + self._task.eval_samples - per_pass + 1, per_pass):
            start = number + self._rank * recipe.micro_batch
            rows = torch.stack([sample(recipe, start + index) for index in range(recipe.micro_batch)])
            rows = rows.to(self._device)
            batches.append((rows[:, :-1], rows[:, 1:]))
        return batches

    def epoch_end(self, before: int, after: int) -> int | None:
        return epoch_ended(before, after, num_samples=self._task.num_samples)

    def _sample(self, position: int) -> Tensor:
        recipe = self._task.recipe
        return sample(recipe, sample_at(position, num_samples=self._task.num_samples, seed=recipe.seed))
