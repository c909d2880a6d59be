"""Carries out the check at a hand-over between groups on a rank; see ``hand_over``. All ranks make the same
calls, and come to the same verdict.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import torch.distributed as dist
from torch import Tensor

from cluster.probe import door
from jobs.training.data.samples import Samples
from jobs.training.health.failures import HandOverRefused
from jobs.training.loop.hand_over import HandOver, Verdict, hand_over_in, judge, num_batches
from jobs.training.ranks.gathering import from_rank_0
from jobs.training.state.random_state import RandomState
from jobs.training.state.restoring import ResumePoint
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.task import Task

# As long as the driver lets a rank wait for samples.
_LONGEST_READ_S = 800.0


class HandOverCheck:
    """One rank's, of an attempt that begins at ``start``."""

    def __init__(
        self, task: Task, context: Context, engine: Engine, samples: Samples, start: ResumePoint
    ) -> None:
        self._task = task
        self._context = context
        self._engine = engine
        self._samples = samples
        self._start = start
        self._is_loaded = start.is_own and start.generation is not None
        self._before = hand_over_in(start.hand_over) if self._is_loaded else None
        self._last: tuple[int, Sequence[Tensor]] | None = None

    @property
    def leaves_losses(self) -> bool:
        return self._task.may_move

    @property
    def is_due(self) -> bool:
        """Whether the checkpoint that was loaded is of another group, or may be."""
        if self._before is None:
            return self._is_loaded and self._task.may_move
        return self._before.group != self._task.group

    def compare(self) -> Verdict:
        """Call it before the first step. Raises ``HandOverRefused`` on all ranks where the run may go on in
        another group, and the losses differ.
        """
        group, step = self._task.group, self._start.step
        if self._before is None or not self._before.losses:
            what = f"the checkpoint of step {step} has no losses of the group that saved it"
            return Verdict(text=f"{what}: group {group} goes on unchecked", agrees=False)
        if self._before.micro_batch > self._task.recipe.micro_batch:
            what = f"the losses of the checkpoint of step {step} are of larger micro-batches"
            return Verdict(text=f"{what}: group {group} goes on unchecked", agrees=False)
        losses = self._losses([self._read(positions) for positions in self._before.batches()])
        verdict = from_rank_0(
            judge(self._before, losses, group=group, precision=self._task.recipe.precision, step=step),
            Verdict,
        )
        if not verdict.agrees and self._task.may_move:
            raise HandOverRefused(verdict.text)
        return verdict

    def did(self, first: int, rows: Sequence[Tensor]) -> None:
        """Takes this rank's micro-batches of a step that begins after ``first`` samples."""
        if self.leaves_losses:
            self._last = first, rows

    def left(self, *, in_store: bool) -> Mapping[str, Any] | None:
        """What is to stand with a checkpoint at this step boundary, ``in_store`` or not; None for a run with
        a single group.
        """
        if not self.leaves_losses:
            return None
        if not in_store:
            return HandOver(group=self._task.group).as_stored()
        if self._last is None:
            # The weights are those that were loaded.
            return self._start.hand_over
        first, rows = self._last
        micro_batches = [self._common(rows, number) for number in range(num_batches(self._task.recipe))]
        losses = self._losses(micro_batches)
        return HandOver(
            group=self._task.group,
            position=first,
            micro_batch=self._task.recipe.micro_batch,
            # JSON has no number for a loss that is not finite.
            losses=losses if all(map(isfinite, losses)) else (),
        ).as_stored()

    def _losses(self, micro_batches: Sequence[Tensor]) -> tuple[float, ...]:
        random_state = RandomState(self._context.rank, self._context.device)
        losses = [self._engine.evaluate(*batch) for batch in self._samples.on_device([*micro_batches])]
        random_state.restore()
        return tuple(float(loss) for loss in losses)

    def _common(self, rows: Sequence[Tensor], number: int) -> Tensor:
        """The step's micro-batch of that number, from the rank that has it."""
        turn, owner = divmod(number, self._context.world_size)
        if not dist.is_initialized():
            return rows[turn]
        sent = rows[turn].to(door.collective_device(dist.get_backend()), copy=True)
        dist.broadcast(sent, src=owner)
        return sent.cpu()

    def _read(self, positions: range) -> Tensor:
        numbers = self._samples.numbers_at(positions)
        self._samples.wait_for(numbers, _LONGEST_READ_S)
        return self._samples.read(numbers)
