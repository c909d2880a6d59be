"""Loads pretrained weights into a fresh engine, under any strategy; each rank reads its own share."""

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from checkpointing.errors import Unfit
from checkpointing.saving.snapshot import Piece
from jobs.training.models.weights import ELEMENT_BYTES, Stored, find_weights
from jobs.training.ranks.gathering import gather
from jobs.training.strategies.contract import Counters, Engine
from jobs.training.task.presets import ModelConfig

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# The most elements that are in memory at a time, however large a tensor is.
_MOST_ELEMENTS = 1 << 24


def begin_with(place: Path, config: ModelConfig, engine: Engine) -> None:
    """Fills the engine with the weights at ``place``; the optimizer begins as in a new run. Collective.

    If the weights are ``Unfit`` on any rank, all ranks raise that, with the message of the lowest such rank.
    """
    problem: str | None = None
    try:
        _fill(engine.targets(), find_weights(place, config))
    except Unfit as error:
        problem = str(error)
    if problems := [text for text in gather(problem, str | None) if text]:
        raise Unfit(problems[0])
    engine.restored(Counters(num_updates=0, num_skipped_updates=0))


@torch.no_grad()
def _fill(pieces: Sequence[Piece], weights: dict[str, Stored]) -> None:
    for piece in pieces:
        kind, _, name = piece.name.partition("/")
        if kind != "param":
            continue
        done = 0
        for values in _values(weights[name], piece.start, piece.values.numel()):
            piece.values[done : done + len(values)].copy_(values)
            done += len(values)


def _values(stored: Stored, start: int, length: int) -> Iterator[Tensor]:
    """``length`` elements from ``start`` on, a part at a time, in the file's dtype."""
    size = ELEMENT_BYTES[stored.dtype]
    assert start + length <= prod(stored.shape)
    with stored.file.open("rb") as file:
        file.seek(stored.offset + start * size)
        while length:
            part = bytearray(min(length, _MOST_ELEMENTS) * size)
            if file.readinto(part) != len(part):
                raise Unfit(f"weights: {stored.file} was cut short while it was read")
            yield torch.frombuffer(part, dtype=_DTYPES[stored.dtype])
            length -= len(part) // size
