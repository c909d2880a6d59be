"""A training state of any size without a training: weights and both moments of a model, in fp32."""

from typing import cast

import torch

from checkpointing.saving.snapshot import Piece
from jobs.training.strategies.contract import Counters, Engine

_VOCABULARY, _WIDTH, _INNER = 28_672, 1024, 2816
# With the embedding and the head: 187 M parameters, 2.25 GB with their moments.
LAYERS = 10


def pieces_of(num_layers: int) -> list[Piece]:
    """Each tensor has memory of its own, as in a training."""
    kinds = ("param", "exp_avg", "exp_avg_sq")
    return [_piece(f"{kind}/{name}", shape) for kind in kinds for name, shape in _shapes(num_layers).items()]


def held(pieces: list[Piece]) -> Engine:
    """An engine that has these pieces and nothing else."""
    return cast(Engine, _Held(pieces))


class _Held:
    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    def pieces(self) -> list[Piece]:
        return self._pieces

    def counters(self) -> Counters:
        return Counters(num_updates=0, num_skipped_updates=0)


def _shapes(num_layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (_VOCABULARY, _WIDTH), "head": (_VOCABULARY, _WIDTH)}
    for layer in range(num_layers):
        shapes |= {f"{layer}.{name}": (_WIDTH, _WIDTH) for name in ("q", "k", "v", "o")}
        shapes |= {f"{layer}.{name}": (_INNER, _WIDTH) for name in ("gate", "up")}
        shapes |= {f"{layer}.down": (_WIDTH, _INNER)}
        shapes |= {f"{layer}.{name}": (_WIDTH,) for name in ("norm1", "norm2")}
    return shapes


def _piece(name: str, shape: tuple[int, ...]) -> Piece:
    return Piece(name=name, shape=shape, start=0, values=torch.empty(shape).uniform_().flatten())
