"""Makes synthetic tokens, for benchmarks and for runs without data.

A sample is a pure function of the seed and its number. So a step's global batch is the same set of samples
under every strategy. It is also the same at every world size with as many sequences per step.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.probe import door
from jobs.training.task.job import Recipe

# Ids and labels. Of chat data also where conversations begin.
Batch = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]

# Global batches are made before anything is timed, and are then used again and again: they cost memory, and a
# benchmark's speed does not depend on how fresh its tokens are.
NUM_GLOBAL_BATCHES = 16

# One token in eight begins a new stretch.
_RUN_STARTS = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """One rank's share of ``NUM_GLOBAL_BATCHES`` global batches, in host memory.

    ``rows`` is (global batch, micro-batch, sequence, seq_len + 1), pinned where ``device`` is a GPU.
    """

    rows: Tensor
    device: torch.device

    def load(self, step: int) -> list[Batch]:
        """The (ids, labels) of each micro-batch of ``step``, on the device; copies may not be done yet."""
        rows = self.rows[step % len(self.rows)].to(self.device, non_blocking=True)
        return [(row[:, :-1], row[:, 1:]) for row in rows]

    @property
    def h2d_bytes_per_step(self) -> int | None:
        """The bytes that ``load`` copies to the device; None on a CPU, where it copies nothing."""
        return None if self.device.type == "cpu" else self.rows[0].nbytes


def make_batches(recipe: Recipe, rank: int, device: torch.device) -> Batches:
    """Makes this rank's batches. It takes milliseconds to a second, so call it before a step is timed."""
    shape = (NUM_GLOBAL_BATCHES, recipe.grad_accum, recipe.micro_batch, recipe.seq_len + 1)
    rows = torch.empty(shape, dtype=torch.int64)
    for step, of_step in enumerate(rows):
        for micro, of_micro in enumerate(of_step):
            for i, row in enumerate(of_micro):
                first = step * recipe.sequences_per_step
                place = (micro * recipe.world_size + rank) * recipe.micro_batch + i
                row.copy_(sample(recipe, first + place))
    return Batches(rows=rows if device.type == "cpu" else door.pinned(rows, device), device=device)


def sample(recipe: Recipe, number: int) -> Tensor:
    """Makes ``seq_len + 1`` tokens from which a model can learn a little.

    The tokens come in stretches that count upwards. Each stretch begins at a random token. Low ids are far
    more frequent, as some words are in a text.
    """
    digest = hashlib.blake2b(f"{recipe.seed}/{number}".encode(), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    positions = torch.arange(recipe.seq_len + 1)
    is_start = torch.rand(len(positions), generator=generator) < _RUN_STARTS
    is_start[0] = True
    start = torch.where(is_start, positions, 0).cummax(0).values
    heads = (torch.rand(len(positions), generator=generator) ** 3 * recipe.model.vocab_size).long()
    return (heads[start] + positions - start) % recipe.model.vocab_size
