"""The engine of ddp and fsdp: torch's own backward, clipping and optimizer around a wrapped model."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from checkpointing.saving.snapshot import Piece
from jobs.training.strategies import state
from jobs.training.strategies.contract import Counters, Footprint, See, weighted
from jobs.training.strategies.host_adamw import HostAdamW
from jobs.training.strategies.memory import gradients, moments, release_memory, storage_bytes
from jobs.training.strategies.optimizer import adamw, clip, host_adamw, schedule
from jobs.training.task.job import Recipe

PartOfRank = Callable[[Tensor, int], state.Part]
"""Says which elements of a parameter a rank saves, of those that this rank holds."""

Unreduced = Callable[[nn.Module, See], AbstractContextManager[None]]
"""Shows, of a pass forward and back inside of it, this rank's own gradients by name."""


class NativeEngine:
    """See ``Engine``. ``defer`` is entered for every micro-batch of a step but the last.

    ``saved`` and ``resumed`` say which elements of its tensors are ``pieces`` of a rank among ``holds``, and
    this rank's ``targets``.
    See ``Unreduced`` for ``unreduced``. With ``keeps_gradients`` an update sets gradients to zero and does
    not free their memory.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        saved: PartOfRank,
        resumed: state.PartOf,
        unreduced: Unreduced,
        *,
        holds: Sequence[int],
        defer: Callable[[], AbstractContextManager[None]] = nullcontext,
        keeps_gradients: bool = False,
    ) -> None:
        self.grad_norm: Tensor | None = None
        self.num_skipped_updates = 0  # Always 0: a gradient that is not finite goes into weights and loss.
        self._model = model
        self._saved = saved
        self._resumed = resumed
        self._unreduced = unreduced
        self.holds = holds
        self._defer = defer
        self._keeps_gradients = keeps_gradients
        self._grad_accum = recipe.grad_accum
        self._clip_norm = recipe.optimizer.clip_norm
        optimizer = host_adamw if recipe.offload == "optimizer" else adamw
        self._optimizer = optimizer(model.parameters(), recipe.optimizer)
        self._schedule = schedule(self._optimizer, recipe.optimizer)

    def accumulate(self, *batch: Tensor, last: bool, weight: float = 1.0) -> Tensor:
        with nullcontext() if last else self._defer():
            loss: Tensor = weighted(self._model(*batch), weight)
            (loss / self._grad_accum).backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self._model(*batch)
        return loss

    def recompute(self, *batch: Tensor, see: See) -> None:
        with self._unreduced(self._model, see):
            loss: Tensor = self._model(*batch)
            loss.backward()
        see("loss", loss.detach())
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def update(self) -> None:
        self.grad_norm = clip(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    @property
    def learning_rate(self) -> float:
        return float(self._schedule.get_last_lr()[0])

    def pieces(self) -> list[Piece]:
        return self.pieces_of(dist.get_rank())

    def pieces_of(self, rank: int) -> list[Piece]:
        return state.pieces(self._model, self._optimizer, lambda parameter: self._saved(parameter, rank))

    def targets(self) -> list[Piece]:
        return state.pieces(self._model, self._optimizer, self._resumed)

    def counters(self) -> Counters:
        return state.counters(self._schedule, self.num_skipped_updates)

    def restored(self, counters: Counters) -> None:
        state.restore_counters(self._optimizer, self._schedule, counters)
        self.num_skipped_updates = counters.num_skipped_updates

    def footprint(self) -> Footprint:
        in_moments = storage_bytes(moments(self._optimizer))
        return Footprint(
            parameters=storage_bytes(self._model.parameters()),
            masters=0,
            gradients=storage_bytes(gradients(self._model)),
            moments=in_moments,
            offloaded=in_moments if isinstance(self._optimizer, HostAdamW) else 0,
        )

    def close(self) -> None:
        del self._model, self._defer, self._optimizer, self._schedule
        release_memory()
