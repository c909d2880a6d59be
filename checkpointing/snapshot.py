"""Live training state -> a warm arena, in one pass."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The elements from ``start`` on of the flattened logical tensor ``name``, which is shaped ``shape``.

    ``values`` is a contiguous one-dimensional view of live memory, or empty: reading it after a step gives
    the state after that step, and writing it changes the training.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    values: Tensor
