"""Computes the loss on held-out samples. A stop request may interrupt this; the next attempt then does it."""

from functools import partial

import torch

from jobs.training.data.samples import Samples
from jobs.training.loop.control import Control
from jobs.training.state.random_state import RandomState
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context


class Evaluation:
    """Evaluates the engine. ``is_due``: a step was to be evaluated, and its evaluation is not finished."""

    def __init__(
        self, context: Context, engine: Engine, samples: Samples, control: Control, *, is_due: bool
    ) -> None:
        self.is_due = is_due
        self._context = context
        self._engine = engine
        self._samples = samples
        self._control = control

    def work(self) -> float | None:
        """The loss over the held-out samples, the same on all ranks; None if a stop request interrupted it.

        An interrupted evaluation stays due, and will draw the same random numbers when it is done again.
        """
        self.is_due = True
        before, losses = RandomState(self._context.rank, self._context.device), []
        shares = []
        for numbers in self._samples.held_out():
            self._control.wait(partial(self._samples.wait_for, numbers))
            if self._control.aim is not None:
                before.restore()
                return None
            batch = self._samples.batch(numbers)
            losses.append(self._engine.evaluate(*batch))
            shares.append((batch[1] >= 0).double().mean())
            self._context.status.num_batches += 1
        self.is_due = False
        loss = self._control.mean(torch.stack(losses).mean().item())
        if not self._samples.has_unlabelled:
            return loss
        share = self._control.mean(torch.stack(shares).mean().item())
        # Samples of which nothing is learnt have no loss.
        return loss / share if share else 0.0
