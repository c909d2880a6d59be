"""A state of a device, saved and restored, and how long a training stands still for a save."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file

from checkpointing.saving.snapshot import Arena, Landing, Layout, host_memory, layout
from jobs.training.device.host_memory import resident_bytes
from jobs.training.strategies.build import build
from jobs.training.strategies.contract import Engine
from jobs.training.task.job import Recipe
from tests.gpu.here import vendor_of, wait_for
from tests.gpu.trainings import set_first_values, steps
from tests.live.attempts import Wanted, attempt_each, digests_of, newest_manifest

_BEFORE, _AFTER = range(3), range(3, 6)
_ROUNDS = 5
_PINNED_BYTES = 2**30 + 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """``is_equal``: what was restored is what was saved, to the bit. The losses are of the steps after it."""

    num_bytes: int
    is_pinned: bool
    is_equal: bool
    losses: tuple[float, ...]
    losses_after_restoring: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Seconds that a training stands still for a save, and that a plain copy of as many bytes takes."""

    num_bytes: int
    saves_s: tuple[float, ...]
    copies_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of each save and the copy that came right after it."""
        return median(save / copy for save, copy in zip(self.saves_s, self.copies_s, strict=True))

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / median(self.copies_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Of ``num_bytes`` for a device, a bit more than a power of two: resident then, and when dropped."""

    num_bytes: int
    held_bytes: int
    kept_bytes: int
    is_pinned: bool
    is_equal: bool
    bytes_per_s: float


def pinned(device: torch.device) -> Pinned:
    _pinned(device, 2**20)  # What the first use of a kernel takes is not this memory's.
    return _pinned(device, _PINNED_BYTES)


def _pinned(device: torch.device, num_bytes: int) -> Pinned:
    source = torch.randint(256, (num_bytes,), dtype=torch.uint8, device=device)
    wait_for(device)
    before = resident_bytes()
    memory = host_memory(num_bytes, device)
    held, is_pinned = resident_bytes() - before, device.type != "cpu" and memory.is_pinned()
    taken_s = min(_copy_s(memory, source, device) for _ in range(3))
    is_equal = torch.equal(memory.to(device), source)
    del memory
    return Pinned(
        num_bytes=num_bytes,
        held_bytes=held,
        kept_bytes=resident_bytes() - before,
        is_pinned=is_pinned,
        is_equal=is_equal,
        bytes_per_s=num_bytes / taken_s,
    )


def _copy_s(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> float:
    return _seconds(lambda: target.copy_(source, non_blocking=True), device)


def round_trip_each(recipes: Sequence[Recipe], device: torch.device) -> list[RoundTrip]:
    """One after the other in this process."""
    return [round_trip(recipe, device) for recipe in recipes]


def round_trip(recipe: Recipe, device: torch.device) -> RoundTrip:
    """Trains, saves, trains on; then a second engine restores the save and trains on too."""
    engine = build(recipe, device)
    set_first_values(engine, recipe)
    steps(engine, recipe, _BEFORE, device)
    counters, place = engine.counters(), layout(engine.pieces())
    saved, is_pinned = _state(engine, place)
    losses = steps(engine, recipe, _AFTER, device)
    engine.close()

    again = build(recipe, device)
    _load(again, place, saved)
    again.restored(counters)
    restored, _ = _state(again, place)
    losses_after = steps(again, recipe, _AFTER, device)
    again.close()
    return RoundTrip(
        num_bytes=place.num_bytes,
        is_pinned=is_pinned,
        is_equal=restored == saved,
        losses=tuple(losses),
        losses_after_restoring=tuple(losses_after),
    )


def trained_each(recipes: Sequence[Recipe], device: torch.device) -> list[str]:
    """The digest of each one's state after some steps, one after the other in this process."""
    return [_trained(recipe, device) for recipe in recipes]


def _trained(recipe: Recipe, device: torch.device) -> str:
    engine = build(recipe, device)
    set_first_values(engine, recipe)
    steps(engine, recipe, _BEFORE, device)
    state, _ = _state(engine, layout(engine.pieces()))
    engine.close()
    return hashlib.sha256(state).hexdigest()


def _state(engine: Engine, place: Layout) -> tuple[bytes, bool]:
    pieces = engine.pieces()
    arena = Arena(pieces, place)
    arena.take(pieces)
    is_on_host = pieces[0].values.device.type == "cpu"
    # Of a build of torch without devices, the question is refused.
    is_pinned = False if is_on_host else torch.frombuffer(arena.data, dtype=torch.uint8).is_pinned()
    return bytes(arena.data), is_pinned


def _load(engine: Engine, place: Layout, saved: bytes) -> None:
    landing = Landing(engine.targets())
    for want, buffer, shard in zip(landing.wants, landing.buffers, place.shards, strict=True):
        assert want.tensor == shard.tensor
        buffer[:] = saved[shard.offset : shard.offset + len(buffer)]
    landing.settle()


def blocked(recipe: Recipe, device: torch.device) -> Blocked:
    """Saves and plain copies in turn, after one of each that is not counted."""
    engine = build(recipe, device)
    steps(engine, recipe, range(1), device)
    pieces = engine.pieces()
    arena = Arena(pieces, layout(pieces))
    num_bytes = sum(piece.values.nbytes for piece in pieces)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device.type != "cpu")
    saves_s, copies_s = [], []
    for _ in range(_ROUNDS + 1):
        saves_s.append(_seconds(lambda: arena.take(pieces), device))
        copies_s.append(_copy_s(target, source, device))
    engine.close()
    return Blocked(num_bytes=num_bytes, saves_s=tuple(saves_s[1:]), copies_s=tuple(copies_s[1:]))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def parted(folder: Path, recipe: Recipe, device: torch.device) -> str:
    """A run of two attempts beside one that was left alone: how they ended, see ``difference``."""
    wanted = Wanted(
        name="r",
        recipe=recipe,
        num_steps=8,
        store=folder / "alone",
        device=device,
        vendor=vendor_of(device),
    )
    halves = [
        Wanted(
            name="r",
            recipe=recipe,
            num_steps=number,
            store=folder / "parted",
            device=device,
            vendor=vendor_of(device),
        )
        for number in (4, 8)
    ]
    attempt_each([wanted, *halves])
    return difference(folder / "alone", folder / "parted")


def difference(one: Path, other: Path, most: float = 1e-3) -> str:
    """How far the newest saves of two runs called ``r`` are apart. Raises if that is more than ``most``."""
    manifests = [newest_manifest(store, "r") for store in (one, other)]
    assert manifests[0].cut.step == manifests[1].cut.step
    if digests_of(manifests[0]) == digests_of(manifests[1]):
        return f"bit-equal at step {manifests[0].cut.step}"
    ours, theirs = (
        _weights(store, manifest.cut.generation)
        for store, manifest in zip((one, other), manifests, strict=True)
    )
    assert ours.keys() == theirs.keys()
    distance = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert distance <= most, f"weights are {distance:.1e} apart, expected at most {most:.0e}"
    return f"weights at most {distance:.1e} apart at step {manifests[0].cut.step}, not bit-equal"


def _weights(store: Path, generation: str) -> dict[str, torch.Tensor]:
    """Of one rank, by name."""
    (path,) = store.rglob(f"{generation}/rank-00000.safetensors")
    return {name: values for name, values in load_file(path).items() if name.startswith("param/")}
