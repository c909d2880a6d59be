"""How long a training waits for a save: ours, beside one copy of the same bytes and beside torch's ways.

Each way saves the same state to the same disk, in a process of its own; its first save is a first.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from checkpointing.saving.snapshot import Piece
from tests.bench.apart import apart
from tests.bench.states import LAYERS, held, pieces_of
from tests.bench.ways import join_group, way

NUM_WARM = 4
COPY_BOUND = 1.2
# At most this share of what the way blocks for, first and warm.
BOUNDS = {"dcp.save": (1 / 10, 1 / 10), "dcp.async_save": (1 / 5, 1 / 5), "tuned": (1 / 5, 1.1)}
_WAYS = ("ours", "torch.save", "dcp.save", "dcp.async_save", "tuned")
_LABELS = {"ours": "save", "tuned": "async, tuned"}


def main(num_layers: int = LAYERS) -> bool:
    found = {name: _measured(name, num_layers) for name in _WAYS}
    ours = found["ours"]
    copied = median(save / copy for save, copy in zip(ours["warm_s"], ours["copies_s"], strict=True))
    print(f"saving         {ours['num_bytes'] / 1e9:.2f} GB on 1 rank, torch {torch.__version__}")
    for name in _WAYS:
        _show(name, found)
    print(f"               ours is {copied:.2f}x one warm memory copy (bound {COPY_BOUND}x)")
    print(f"               its memory: {ours['setup_s']:.2f} s before the first step")
    are_met = [_is_met(found, name) for name in BOUNDS]
    return copied <= COPY_BOUND and all(are_met)


def _measured(name: str, num_layers: int) -> Any:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        return apart(__name__, name, folder, num_layers)


def _show(name: str, found: dict[str, Any]) -> None:
    first, warm = _shares(found, name)
    warm_s = found[name]["warm_s"]
    each = " ".join(f"{seconds:.2f}" for seconds in warm_s)
    blocked = f"{found[name]['first_s']:.3f} s first, {median(warm_s):.3f} s warm ({each})"
    text = f"{_LABELS.get(name, name):14} blocks {blocked}"
    if name == "ours":
        print(text)
        return
    bounds = BOUNDS.get(name)
    bound = f" (bounds {bounds[0]:.2f}, {bounds[1]:.2f})" if bounds else ""
    print(f"{text}: ours {first:.3f}, {warm:.3f} of it{bound}")


def _is_met(found: dict[str, Any], name: str) -> bool:
    first, warm = _shares(found, name)
    return first <= BOUNDS[name][0] and warm <= BOUNDS[name][1]


def _shares(found: dict[str, Any], name: str) -> tuple[float, float]:
    ours, other = found["ours"], found[name]
    return ours["first_s"] / other["first_s"], median(ours["warm_s"]) / median(other["warm_s"])


def _measure(name: str, folder: Path, num_layers: int) -> dict[str, Any]:
    """In the way's process."""
    join_group()
    pieces = pieces_of(num_layers)
    started = time.perf_counter()
    saving = way(name, held(pieces), folder)
    setup_s = time.perf_counter() - started
    copy = _Copy(pieces) if name == "ours" else None
    saves_s, copies_s = [], []
    for step in range(NUM_WARM + 1):
        started = time.perf_counter()
        saving.save(step)
        saves_s.append(time.perf_counter() - started)
        saving.wait()
        if copy:
            copies_s.append(copy.seconds())
    return {
        "num_bytes": sum(piece.values.nbytes for piece in pieces),
        "setup_s": setup_s,
        "first_s": saves_s[0],
        "warm_s": saves_s[1:],
        "copies_s": copies_s[1:],
    }


class _Copy:
    """As many bytes in one piece, from touched memory to touched memory."""

    def __init__(self, pieces: list[Piece]) -> None:
        num_bytes = sum(piece.values.nbytes for piece in pieces)
        self._memory = [torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2)]

    def seconds(self) -> float:
        started = time.perf_counter()
        self._memory[0].copy_(self._memory[1])
        return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
