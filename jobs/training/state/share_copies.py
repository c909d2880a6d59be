"""Sends ranks' shares of saves between hosts, through a group of its own beside the training.

A share is sent as its part, which has the digests, and then in pieces. The receiver compares all of them
before it keeps anything. A sender rests between pieces, as the training needs it (see ``pace``).
"""

import mmap
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from checkpointing.errors import Corrupt
from checkpointing.format.digests import digests
from checkpointing.format.manifest import (
    MOST_MANIFEST_BYTES,
    Cut,
    FilePart,
    decode_part,
    encode_part,
)
from checkpointing.saving.local_tier import LocalTier
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.pace import Pace
from checkpointing.saving.save import Save, SaveFailed
from checkpointing.stores.contract import StoreError

_PIECE_BYTES = 16 * 2**20
_TAG = 0
_LONGEST_REST_S = 1.0
# A share that could not be had.
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A rank's share, which lies in ``tier`` of this host."""

    tier: LocalTier
    cut: Cut
    part: FilePart


class CopiesOff(SaveFailed):
    """The hosts don't reach each other any more: until the next start each keeps its own shares alone."""


class ShareCopies:
    """Keeps this rank's shares in its host's memory, and brings copies to ``keepers`` on other hosts.

    ``group`` is a ``GlooGroup``, whose collectives torch's stubs do not list; None if nobody keeps copies.
    ``sources`` are the ranks whose copies this one keeps, each of at most ``most_bytes``.
    """

    def __init__(
        self,
        tier: MemoryTier,
        group: Any,
        *,
        keepers: Sequence[int],
        sources: Sequence[int],
        most_bytes: int,
        pace: Pace,
    ) -> None:
        self._tier = tier
        self._group = group
        self._keepers = keepers
        self._sources = sources
        self._most_bytes = most_bytes
        self._pace = pace
        # Memory that is touched for the first time costs more than what comes into it.
        self._rooms = {rank: _Room() for rank in sources}
        # The newest generation that came everywhere; it stays until one save after it did so too.
        self._whole: str | None = None
        self._is_failing = False

    def resume_from(self, generation: str | None) -> None:
        """``generation`` is whole."""
        self._whole = generation

    def keep(self, save: Save) -> str | None:
        # Where no copies are kept any more, a newer save is worth more than a whole one.
        whole = None if self._group is None else self._whole
        return self._tier.keep(save.cut, save.part, save.room.data, whole=whole)

    def exchange(self, save: Save | None) -> str | None:
        """Sends what ``keep`` has kept, or that there is nothing, and keeps what other ranks send.

        Every rank calls it once for each save in memory. Raises ``SaveFailed`` if a copy could not be sent or
        kept, and ``CopiesOff`` if that ends it.
        """
        if self._group is None:
            return None
        own = Held(tier=self._tier, cut=save.cut, part=save.part) if save else None
        incoming = {rank: _Incoming(rank, self._most_bytes, room) for rank, room in self._rooms.items()}
        self._pace.begin()
        try:
            _swap(self._group, own, self._keepers, incoming, self._pace.rest_s)
            problems = _kept(incoming, self._tier, self._whole)
            num_failed = torch.tensor(len(problems) + (save is None))
            self._group.allreduce([num_failed]).wait()
        except Exception as error:
            # Whatever it was, what the others send next would be taken for something else.
            self._group = None
            ranks = ", ".join(map(str, sorted({*self._keepers, *self._sources})))
            # What gloo says goes on with guesses and greetings.
            why = str(error).partition(". ")[0]
            raise CopiesOff(
                f"ranks {ranks}, on other hosts, are not reached ({why}); until the next start each host "
                "keeps its own saves alone"
            ) from error
        if save is not None and not num_failed:
            self._whole, self._is_failing = save.cut.generation, False
        else:
            # If it goes on like this, the newest one is worth more than one that gets old.
            self._whole, self._is_failing = None if self._is_failing else self._whole, True
        if problems:
            raise SaveFailed("; ".join(problems))
        return None

    def close(self) -> None:
        """Call it once no exchange is on its way anywhere."""
        if self._group is not None:
            self._group.close()


def bring(group: Any, share: Held | None, *, to: int) -> None:
    """The other side of ``receive``, also where there is none. Nothing is trained meanwhile, so no way is
    left free.
    """
    _swap(group, share, [to], {})


def receive(group: Any, sources: Mapping[int, int], keep_in: MemoryTier, *, most_bytes: int) -> list[str]:
    """Keeps what ``sources`` bring: each rank there brings the share of the rank that it is mapped to.

    Returns what could not be had. Raises if a rank is not reached, or has more than ``most_bytes`` for one.
    """
    incoming = {rank: _Incoming(share, most_bytes, _Room()) for rank, share in sources.items()}
    _swap(group, None, [], incoming)
    return _kept(incoming, keep_in)


def _kept(incoming: Mapping[int, "_Incoming"], keep_in: MemoryTier, whole: str | None = None) -> list[str]:
    return [problem for one in incoming.values() if (problem := one.keep(keep_in, whole))]


def _swap(
    group: Any,
    own: Held | None,
    targets: Sequence[int],
    incoming: Mapping[int, "_Incoming"],
    rest_s: Callable[[float], float] = lambda _: 0.0,
) -> None:
    """Sends ``own`` to ``targets``, or that there is none, and takes what is ``incoming``, by rank. A peer is
    waited for as long as the group's timeout says.
    """
    with _opened(own if targets else None) as data:
        outgoing = _outgoing(own, data) if targets else iter(())
        while True:
            works = [group.send([piece], target, _TAG) for piece in _next(outgoing) for target in targets] + [
                group.recv([one.wanted], rank, _TAG)
                for rank, one in incoming.items()
                if one.wanted is not None
            ]
            if not works:
                break
            began = time.monotonic()
            for work in works:
                work.wait()
            for one in incoming.values():
                one.came()
            time.sleep(min(rest_s(time.monotonic() - began), _LONGEST_REST_S))


def _next(pieces: Iterator[Tensor]) -> list[Tensor]:
    piece = next(pieces, None)
    return [] if piece is None else [piece]


def _outgoing(own: Held | None, data: memoryview | None) -> Iterator[Tensor]:
    if own is None or data is None:
        yield torch.tensor(_NOTHING)
        return
    part = encode_part(own.cut, own.part)
    yield torch.tensor([len(part), len(data)])
    yield torch.frombuffer(bytearray(part), dtype=torch.uint8)
    for start in range(0, len(data), _PIECE_BYTES):
        yield torch.frombuffer(data[start : start + _PIECE_BYTES], dtype=torch.uint8)


class _Room:
    """Memory for one share at a time, which stays for the next one."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def of(self, num_bytes: int) -> memoryview:
        if len(self._memory) < num_bytes:
            self._memory = mmap.mmap(-1, num_bytes)
        return memoryview(self._memory)[:num_bytes]


class _Incoming:
    """A share on its way to this rank. ``wanted`` is the memory for what comes next, None at the end."""

    def __init__(self, share: int, most_bytes: int, room: _Room) -> None:
        self._share = share
        self._most_bytes = most_bytes
        self._room = room
        self._problem: str | None = None
        self._part = b""
        self._data = memoryview(b"")
        self._steps = self._receive()
        self.wanted: Tensor | None = next(self._steps)

    def came(self) -> None:
        if self.wanted is not None:
            self.wanted = next(self._steps, None)

    def keep(self, tier: MemoryTier, whole: str | None) -> str | None:
        """Keeps the share if it is whole; returns why not."""
        try:
            if self._problem is None and self._part:
                cut, part = decode_part(self._part)
                if part.rank != self._share or digests(self._data) != part.chunks:
                    raise Corrupt("it is not what was saved")
                tier.keep(cut, part, self._data, whole=whole)
        except (Corrupt, StoreError) as error:
            self._problem = str(error)
        return self._problem and f"the copy of rank {self._share}'s share: {self._problem}"

    def _receive(self) -> Generator[Tensor, None, None]:
        sizes = torch.zeros(2, dtype=torch.int64)
        yield sizes
        num_told, num_bytes = (int(size) for size in sizes)
        if (num_told, num_bytes) == _NOTHING:
            self._problem = "there is none"
            return
        if not (0 < num_told <= MOST_MANIFEST_BYTES and 0 < num_bytes <= self._most_bytes):
            # What comes next can't be told apart from what should come.
            raise RuntimeError(f"a share of {num_bytes} bytes, expected at most {self._most_bytes}")
        told = torch.zeros(num_told, dtype=torch.uint8)
        yield told
        self._part = told.numpy().tobytes()
        self._data = self._room.of(num_bytes)
        memory = torch.frombuffer(self._data, dtype=torch.uint8)
        for start in range(0, num_bytes, _PIECE_BYTES):
            yield memory[start : start + _PIECE_BYTES]


@contextmanager
def _opened(own: Held | None) -> Iterator[memoryview | None]:
    """The bytes of a share; None if they are not there, or not as many as were saved."""
    if own is None:
        yield None
        return
    try:
        file = own.tier.open_share(own.cut, own.part)
    except StoreError:
        yield None
        return
    with file:
        if not own.part.num_bytes == os.fstat(file.fileno()).st_size > 0:
            # Nobody has room for more, and nothing maps an empty file.
            yield None
            return
        # Nothing writes to it, but torch wants memory that may be written to. It goes with its last piece.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
