"""Pieces in plain files: the least that saving and resuming can be, for tests of what is saved."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from math import prod
from pathlib import Path

import torch

from checkpointing.saving.snapshot import Piece
from jobs.training.strategies.contract import Counters

ByName = Mapping[str, list[Piece]]


def save(folder: Path, rank: int, pieces: list[Piece], counters: Counters) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = [(piece.name, piece.shape, piece.start, piece.values.numel()) for piece in pieces]
    (folder / f"{rank}.bin").write_bytes(b"".join(map(_bytes, pieces)))
    (folder / f"{rank}.json").write_text(json.dumps({"pieces": index, "counters": asdict(counters)}))


def load(folder: Path) -> tuple[ByName, Counters]:
    """All ranks' pieces."""
    found = defaultdict(list)
    for path in folder.glob("*.json"):
        saved = json.loads(path.read_text())
        lengths = [length for *_, length in saved["pieces"]]
        data = torch.from_file(str(path.with_suffix(".bin")), size=sum(lengths), dtype=torch.float32)
        for (name, shape, start, _), values in zip(saved["pieces"], data.split(lengths), strict=True):
            found[name].append(Piece(name=name, shape=tuple(shape), start=start, values=values))
    return found, Counters(**saved["counters"])


def fill(targets: Iterable[Piece], saved: ByName) -> None:
    """Every element of every target, from whichever piece has it."""
    for target in targets:
        filled = sum(_copy_common(piece, target) for piece in saved[target.name])
        assert filled == target.values.numel(), target.name


def gaps_and_overlaps(pieces: list[Piece]) -> list[str]:
    """Where the pieces of one tensor do not follow one another from its first element to its last."""
    problems, end = [], 0
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.values.numel())):
        if piece.values.numel() == 0:
            continue
        if piece.start != end:
            problems.append(f"{piece.name}: {end} to {piece.start}")
        end = piece.start + piece.values.numel()
    return problems if end == prod(pieces[0].shape) else [*problems, f"{pieces[0].name}: ends at {end}"]


def digest(pieces: Iterable[Piece]) -> str:
    found = blake2b()
    for piece in pieces:
        found.update(repr((piece.name, piece.shape, piece.start)).encode())
        found.update(_bytes(piece))
    return found.hexdigest()


def _copy_common(piece: Piece, target: Piece) -> int:
    start = max(piece.start, target.start)
    end = min(piece.start + piece.values.numel(), target.start + target.values.numel())
    if start >= end:
        return 0
    common = piece.values[start - piece.start : end - piece.start]
    target.values[start - target.start : end - target.start] = common
    return end - start


def _bytes(piece: Piece) -> bytes:
    assert piece.values.dtype == torch.float32
    assert piece.values.dim() == 1
    assert piece.values.is_contiguous()
    return piece.values.numpy().tobytes()
