"""What the five strategies have in common: the engine that trains under each of them."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from checkpointing.saving.snapshot import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of training state that this rank holds right now, by kind.

    ``parameters`` counts what the forward pass starts from and ``masters`` the fp32 copies that the
    optimizer updates beside them; DeepSpeed keeps some even where the parameters are fp32. Moments
    exist from the first update on, or from the first call of ``Engine.pieces`` or ``targets``.
    """

    parameters: int
    masters: int
    gradients: int
    moments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a training has counted so far. ``num_updates`` is where Adam and the schedule both stand."""

    num_updates: int
    num_skipped_updates: int


class Engine(Protocol):
    """A model, its optimizer and its schedule under one strategy.

    One optimizer step is ``accumulate`` for each micro-batch, then ``update``. Every rank makes the
    same calls in the same order. After ``close`` the process holds none of its memory and torch is
    unpatched: the next engine in this process runs as in a fresh one.

    ``learning_rate`` is the next update's. ``grad_norm`` is the last update's, over all ranks and before
    clipping, still on the device; None before the first.
    """

    @property
    def learning_rate(self) -> float: ...

    @property
    def grad_norm(self) -> Tensor | None: ...

    @property
    def num_skipped_updates(self) -> int:
        """How many calls of ``update`` changed nothing, because gradients were not finite."""

    def accumulate(self, ids: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        """Forward and backward of one micro-batch; the loss, detached, still on the device."""

    def evaluate(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss and nothing else: no gradient, no change. Every rank calls it as often."""

    def update(self) -> None:
        """Reduce, clip, step the optimizer and the schedule, clear the gradients."""

    def pieces(self) -> list[Piece]:
        """What this rank saves: its part of ``param/``, ``exp_avg/`` and ``exp_avg_sq/`` of every parameter.

        In fp32 under every strategy and precision, under Hugging Face's names. Each element of each
        tensor is in exactly one rank's piece. Every call gives the same views, also before the first
        step; nothing is computed or sent.
        """

    def targets(self) -> list[Piece]:
        """What this rank fills to resume, named and shaped as ``pieces`` are."""

    def counters(self) -> Counters: ...

    def restored(self, counters: Counters) -> None:
        """Goes on from the targets' values, which all ranks have filled, and from ``counters``.

        The next step is the one that the saved training would have done next: to the bit under the
        strategy, precision and world size that it was saved under.
        """

    def footprint(self) -> Footprint: ...

    def close(self) -> None: ...
