"""The engine of ddp and fsdp: torch's own backward, clipping and optimizer around a wrapped model."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from jobs.training.job import Recipe
from jobs.training.strategies import Footprint
from jobs.training.strategies.memory import moments, release_memory, storage_bytes
from jobs.training.strategies.optimizer import adamw, clip, warm_up


class NativeEngine:
    """See ``Engine``. ``defer`` is entered for every micro-batch of a step but the last."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        defer: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.grad_norm: Tensor | None = None
        self.num_skipped_updates = 0  # What is not finite goes on into the weights and shows in the loss.
        self._model = model
        self._defer = defer
        self._grad_accum = recipe.grad_accum
        self._clip_norm = recipe.optimizer.clip_norm
        self._optimizer = adamw(model.parameters(), recipe.optimizer)
        self._schedule = warm_up(self._optimizer, recipe.optimizer)

    def accumulate(self, ids: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        with nullcontext() if last else self._defer():
            loss: Tensor = self._model(ids, labels)
            (loss / self._grad_accum).backward()
        return loss.detach()

    def update(self) -> None:
        self.grad_norm = clip(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()

    @property
    def learning_rate(self) -> float:
        return float(self._schedule.get_last_lr()[0])

    def footprint(self) -> Footprint:
        parameters = list(self._model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return Footprint(
            parameters=storage_bytes(parameters),
            masters=0,
            gradients=storage_bytes(gradients),
            moments=storage_bytes(moments(self._optimizer)),
        )

    def close(self) -> None:
        del self._model, self._defer, self._optimizer, self._schedule
        release_memory()
