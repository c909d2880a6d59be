"""Saves, restores and checks the random generators of a rank; the saved states have a fixed size.

There are four: Python's, NumPy's, torch's on the host and, on a GPU, the device's. Code that has a generator
of its own must save that itself.
"""

import base64
import hashlib
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor

from checkpointing.saving.snapshot import Piece
from cluster.probe import door

# Python and NumPy both use a Mersenne Twister: 624 words and the place in them. Normal numbers come in pairs,
# so a flag and the pair's second number follow, if that is still to be handed out.
_TWISTER = struct.Struct("<625I?d")
_PYTHON_VERSION = 3


def seed(number: int, rank: int, device: torch.device) -> None:
    """Seeds every generator; ``number`` and ``rank`` alone determine the seed."""
    digest = hashlib.blake2b(f"{number}/{rank}".encode(), digest_size=4).digest()
    begin = int.from_bytes(digest, "big")
    random.seed(begin)
    numpy.random.seed(begin)
    torch.manual_seed(begin)
    door.seed(device, begin)


class RandomState:
    """The state of this process's generators at the latest ``capture``; making the object captures too.

    ``pieces`` are always the same memory, named ``rng/<rank>/<generator>``. ``capture`` fills that memory
    from the generators; ``restore`` sets the generators from it.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._device = device
        self._states = _states(device)

    def pieces(self) -> list[Piece]:
        return _pieces(self._rank, self._states)

    def told(self) -> dict[str, str]:
        """The states as text, for ``pieces_as_told`` on another rank."""
        return {
            name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in self._states.items()
        }

    def capture(self) -> None:
        for name, state in _states(self._device).items():
            self._states[name].copy_(state)

    def restore(self) -> None:
        _set_states(self._states, self._device)


def pieces_as_told(rank: int, told: Mapping[str, str]) -> list[Piece]:
    """The ``pieces`` of another rank."""
    states = {
        name: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        for name, text in told.items()
    }
    return _pieces(rank, states)


def _pieces(rank: int, states: Mapping[str, Tensor]) -> list[Piece]:
    return [
        Piece(name=f"rng/{rank}/{name}", shape=tuple(state.shape), start=0, values=state)
        for name, state in states.items()
    ]


def digest_of_next_numbers(device: torch.device) -> str:
    """A digest of the numbers that every generator would give next; the generators don't move."""
    with _preserved(device):
        host = torch.cat([torch.rand(4), torch.randn(4)])
        drawn = (
            repr((random.gauss(), random.random())).encode(),
            numpy.random.standard_normal(1).tobytes(),
            numpy.random.random_sample(4).tobytes(),
            host.numpy().tobytes(),
            torch.rand(4, device=device).cpu().numpy().tobytes(),
        )
    return hashlib.blake2b(b"".join(drawn), digest_size=16).hexdigest()


@contextmanager
def _preserved(device: torch.device) -> Iterator[None]:
    before = _states(device)
    try:
        yield
    finally:
        _set_states(before, device)


def _states(device: torch.device) -> dict[str, Tensor]:
    states = {"python": _python_state(), "numpy": _numpy_state(), "torch": torch.get_rng_state()}
    own = door.random_state(device)
    return states if own is None else {**states, "device": own}


def _set_states(states: dict[str, Tensor], device: torch.device) -> None:
    _set_python_state(states["python"])
    _set_numpy_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "device" in states:
        door.set_random_state(device, states["device"])


def _python_state() -> Tensor:
    _, words, normal = random.getstate()
    return _packed(words, normal)


def _set_python_state(state: Tensor) -> None:
    random.setstate((_PYTHON_VERSION, *_unpacked(state)))


def _numpy_state() -> Tensor:
    state = numpy.random.get_state(legacy=False)
    twister = state["state"]
    words = (*twister["key"].tolist(), twister["pos"])
    return _packed(words, state["gauss"] if state["has_gauss"] else None)


def _set_numpy_state(state: Tensor) -> None:
    (*words, place), normal = _unpacked(state)
    key = numpy.array(words, dtype=numpy.uint32)
    numpy.random.set_state(("MT19937", key, place, int(normal is not None), normal or 0.0))


def _packed(words: tuple[int, ...], normal: float | None) -> Tensor:
    data = _TWISTER.pack(*words, normal is not None, normal or 0.0)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(state: Tensor) -> tuple[tuple[int, ...], float | None]:
    *words, has_normal, normal = _TWISTER.unpack(state.numpy().tobytes())
    return tuple(words), normal if has_normal else None
