"""The loss on held-out samples, which a wish may interrupt and the next attempt makes up for."""

import torch

from checkpointing.cadence import Busy
from jobs.training.context import Context
from jobs.training.control import Control, Orders
from jobs.training.randomness import RandomState
from jobs.training.samples import Samples
from jobs.training.strategies import Engine


class Evaluation:
    """``is_due``: a step was to be evaluated, and is not yet."""

    def __init__(
        self, context: Context, engine: Engine, samples: Samples, control: Control, *, is_due: bool
    ) -> None:
        self.is_due = is_due
        self._context = context
        self._engine = engine
        self._samples = samples
        self._control = control

    def work(self) -> float | None:
        """The loss over the held-out samples, the same on all ranks; None where a wish came between.

        Then it is still due, and will draw the same random numbers.
        """
        self.is_due = True
        before, losses = RandomState(self._context.rank, self._context.device), []
        for ids, labels in self._samples.held_out():
            if self._control.aim is not None:
                before.restore()
                return None
            self._control.begin(Orders(), Busy())
            losses.append(self._engine.evaluate(ids, labels))
            self._control.end()
        self.is_due = False
        return self._control.mean(torch.stack(losses).mean().item())
