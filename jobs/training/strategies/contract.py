"""The protocol that all five strategies implement: an engine that trains a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from checkpointing.saving.snapshot import Piece

See = Callable[[str, Tensor], None]
"""Takes the name of what was computed, and its values, which are only valid during the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of training state that this rank holds right now, by kind.

    ``parameters`` are those that the forward pass starts from. ``masters`` are fp32 copies that the optimizer
    updates beside them; DeepSpeed keeps some even if the parameters are fp32. Moments exist from the first
    update on, or from the first call of ``Engine.pieces`` or ``targets``.

    ``offloaded`` is how many of all these bytes are kept in host memory, whatever the device.
    """

    parameters: int
    masters: int
    gradients: int
    moments: int
    offloaded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A training's counts so far. ``num_updates`` is the update count of both Adam and the schedule."""

    num_updates: int
    num_skipped_updates: int


class Engine(Protocol):
    """A model, its optimizer and its schedule under one strategy.

    One optimizer step is ``accumulate`` for each micro-batch, then ``update``. Every rank makes the same
    calls in the same order. After ``close`` the process holds none of the engine's memory and torch is
    unpatched: the next engine in this process runs as in a fresh process.

    ``learning_rate`` is the next update's. ``grad_norm`` is the last update's, over all ranks and before
    clipping, still on the device; None before the first.
    """

    @property
    def learning_rate(self) -> float: ...

    @property
    def grad_norm(self) -> Tensor | None: ...

    @property
    def num_skipped_updates(self) -> int:
        """The number of calls of ``update`` that changed nothing because gradients were not finite."""

    def accumulate(self, *batch: Tensor, last: bool, weight: float = 1.0) -> Tensor:
        """Does forward and backward of one micro-batch, whose tensors are what ``Decoder.forward`` takes.

        Returns the loss times ``weight``, detached, still on the device.
        """

    def evaluate(self, *batch: Tensor) -> Tensor:
        """The loss alone: no gradient, no change. Every rank must call it the same number of times."""

    def recompute(self, *batch: Tensor, see: See) -> None:
        """Shows what this rank computes of a micro-batch before anything is reduced, and changes nothing.

        Every rank must call it, between an update and the next step's first micro-batch. All ranks that are
        given the same batch are shown the same names, ``loss``, ``gradients/...`` and, where parameters are
        gathered or cast, ``parameters/...``; and where nothing is at fault the same values.
        """

    def update(self) -> None:
        """Reduces and clips the gradients, steps the optimizer and the schedule, clears the gradients."""

    def pieces(self) -> list[Piece]:
        """The state that this rank saves: its part of ``param/``, ``exp_avg/`` and ``exp_avg_sq/`` tensors.

        Pieces are fp32 under every strategy and precision, and have Hugging Face's names. Each element of
        each tensor is in exactly one rank's piece. Every call gives the same views, also before the first
        step; nothing is computed or sent.
        """

    @property
    def holds(self) -> Sequence[int]:
        """The ranks whose ``pieces`` this rank has in its own memory, itself among them."""

    def pieces_of(self, rank: int) -> list[Piece]:
        """The ``pieces`` of a rank that is among ``holds``, in this rank's memory."""

    def targets(self) -> list[Piece]:
        """The memory that this rank fills to resume, named and shaped as ``pieces`` are."""

    def counters(self) -> Counters: ...

    def restored(self, counters: Counters) -> None:
        """Resumes from ``targets``, which all ranks have filled, and from ``counters``.

        The next step is the step that the saved training would have done next. It is the same to the bit
        under the strategy, precision, world size and ``Settings`` of the save.
        """

    def footprint(self) -> Footprint: ...

    def close(self) -> None: ...


def weighted(loss: Tensor, weight: float) -> Tensor:
    """``loss`` times ``weight``; the same tensor if that is 1, as it is where all tokens are trained on."""
    return loss if weight == 1.0 else loss * weight
