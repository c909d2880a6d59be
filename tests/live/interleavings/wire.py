"""What ranks in turn tell each other: collectives, shares in pieces, and the messages of rank 0's server.

A message is copied while it is waited for, in two parts, and others may go on between them. Who waits for a
rank that is gone, or cut off, or for too long, gets an error, as from gloo.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.live.interleavings.in_turn import Process, Turns

COLLECTIVE_S = 1e5
# How many pieces come says the first message, which no digest covers: gloo's lengths are its own matter.
_NO_SHARE = 16


@dataclass(eq=False, slots=True)
class Peer(Process):
    """A rank's process in one attempt. ``is_cut``: it lives, and reaches no other rank."""

    rank: int = 0
    is_cut: bool = False
    groups: int = 0
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        return self.is_killed or self.is_cut


@dataclass(eq=False, slots=True)
class _Way:
    """From one rank to another in one group: what is sent, and where it is wanted."""

    sent: list[Tensor] = field(default_factory=list)
    wanted: list[Tensor] = field(default_factory=list)
    num_come: int = 0
    is_moving: bool = False

    @property
    def can_move(self) -> bool:
        return not self.is_moving and self.num_come < min(len(self.sent), len(self.wanted))


class Wire:
    """The ranks of one attempt, and what is on its way between them.

    ``is_damaged`` decides of each piece of a share whether a byte of it changes on its way.
    """

    def __init__(self, turns: Turns, peers: Sequence[Peer], is_damaged: Callable[[], bool]) -> None:
        self.turns = turns
        self.peers = peers
        self._is_damaged = is_damaged
        self._ways: dict[tuple[int, int, int], _Way] = {}
        self._given: dict[tuple[int, int], dict[int, Tensor]] = {}
        self.letters: dict[str, bytes] = {}

    def own(self) -> Peer:
        process = self.turns.process
        assert isinstance(process, Peer)
        return process

    def wait(self, what: str, is_ready: Callable[[], bool], others: Sequence[int], timeout_s: float) -> None:
        """Raises what gloo raises unless ``is_ready`` while the ``others`` are there."""
        own = self.own()

        def is_lost() -> bool:
            return own.is_cut or any(self.peers[rank].is_gone for rank in others)

        is_over = self.turns.wait(what, lambda: is_ready() or is_lost(), timeout_s=timeout_s)
        if own.is_cut or not is_ready():
            raise RuntimeError(f"{what}: {'Connection closed by peer' if is_over else 'Timed out'}. As gloo")

    def give(self, group: int, value: Tensor) -> Callable[[], list[Tensor]]:
        """Gives ``value`` to a collective; what is returned waits for all ranks' values."""
        own = self.own()
        number = own.numbers[group] = own.numbers.get(group, 0) + 1
        given = self._given.setdefault((group, number), {})
        given[own.rank] = value.clone()
        ranks = range(len(self.peers))

        def take() -> list[Tensor]:
            missing = [rank for rank in ranks if rank not in given]
            self.wait("collective", lambda: len(given) == len(self.peers), missing, COLLECTIVE_S)
            return [given[rank] for rank in ranks]

        return take

    def send(self, group: int, to: int, data: Tensor, timeout_s: float) -> Callable[[], None]:
        way = self._way(group, self.own().rank, to)
        way.sent.append(data)
        return partial(self._come, way, len(way.sent), to, timeout_s)

    def receive(self, group: int, sender: int, into: Tensor, timeout_s: float) -> Callable[[], None]:
        way = self._way(group, sender, self.own().rank)
        way.wanted.append(into)
        return partial(self._come, way, len(way.wanted), sender, timeout_s)

    def _way(self, group: int, sender: int, receiver: int) -> _Way:
        return self._ways.setdefault((group, sender, receiver), _Way())

    def _come(self, way: _Way, number: int, other: int, timeout_s: float) -> None:
        """Waits until the ``number``th has come; who waits carries it."""
        while way.num_come < number:
            self.wait("share", lambda: way.num_come >= number or way.can_move, [other], timeout_s)
            if way.can_move:
                self._move(way, other)

    def _move(self, way: _Way, other: int) -> None:
        data, into = way.sent[way.num_come], way.wanted[way.num_come]
        if data.nbytes != into.nbytes:
            raise RuntimeError(f"{data.nbytes} bytes came, where {into.nbytes} were expected. As gloo")
        way.is_moving, half = True, data.numel() // 2
        into[:half] = data[:half]
        self.turns.pause("half a share came")
        if self.own().is_gone or self.peers[other].is_gone:
            way.is_moving = False
            raise RuntimeError("Connection closed by peer. As gloo")
        into[half:] = data[half:]
        if into.nbytes > _NO_SHARE and self._is_damaged():
            into[half] ^= 1
        way.num_come += 1
        way.is_moving = False


class Group:
    """Stands for a ``GlooGroup``."""

    def __init__(self, wire: Wire, timeout_s: float) -> None:
        own = wire.own()
        own.groups += 1
        self._wire = wire
        self._number = own.groups
        self._timeout_s = timeout_s

    def size(self) -> int:
        return len(self._wire.peers)

    def allreduce(self, tensors: list[Tensor]) -> Any:
        take = self._wire.give(self._number, tensors[0])

        def wait() -> None:
            tensors[0].copy_(torch.stack(take()).sum(0))

        return SimpleNamespace(wait=wait)

    def broadcast(self, tensor: Tensor, *, root: int) -> Any:
        take = self._wire.give(self._number, tensor)
        return SimpleNamespace(wait=lambda: tensor.copy_(take()[root]))

    def send(self, tensors: list[Tensor], to: int, _tag: int) -> Any:
        return SimpleNamespace(wait=self._wire.send(self._number, to, tensors[0], self._timeout_s))

    def recv(self, tensors: list[Tensor], sender: int, _tag: int) -> Any:
        return SimpleNamespace(wait=self._wire.receive(self._number, sender, tensors[0], self._timeout_s))

    def close(self) -> None:
        pass


class Collectives:
    """Stands for ``torch.distributed`` and its default group."""

    def __init__(self, wire: Callable[[], Wire]) -> None:
        self._wire = wire

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self._wire().own().rank

    def get_world_size(self) -> int:
        return len(self._wire().peers)

    def get_backend(self) -> str:
        return "gloo"

    def all_gather(self, into: list[Tensor], value: Tensor) -> None:
        for target, found in zip(into, self._wire().give(0, value)(), strict=True):
            target.copy_(found)

    def broadcast(self, value: Tensor, *, src: int) -> None:
        value.copy_(self._wire().give(0, value)()[src])


class Letters:
    """Stands for a client of torch's store server, which ends with rank 0."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._timeout_s = 0.0

    def set(self, name: str, value: bytes) -> None:
        self._ask(f"set {name}")
        self._wire.letters[name] = value

    def get(self, name: str) -> bytes:
        self._wire.wait(f"get {name}", lambda: name in self._wire.letters, [0], self._timeout_s)
        return self._wire.letters[name]

    def delete_key(self, name: str) -> bool:
        self._ask(f"delete {name}")
        return self._wire.letters.pop(name, None) is not None

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _ask(self, what: str) -> None:
        self._wire.turns.pause(what)
        if self._wire.own().is_cut or self._wire.peers[0].is_gone:
            raise RuntimeError(f"{what}: the server is gone")
