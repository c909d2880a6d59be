"""Computes at which world sizes a run may continue, and at which of them an attempt starts. Pure.

A step has the same samples in the same order at every size. Only the number of micro-batches per rank
differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import lcm


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedBatch:
    """What ranks divide among themselves: a step's sequences and, if any, an evaluation's samples."""

    sequences: int
    micro_batch: int
    eval_samples: int = 0

    def grad_accum(self, world_size: int) -> int:
        """Micro-batches per rank and step, at a size that ``divides`` the batch."""
        return self.sequences // (world_size * self.micro_batch)

    def divides(self, world_size: int) -> bool:
        per_pass = world_size * self.micro_batch
        return self.sequences % per_pass == 0 and self.eval_samples % per_pass == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWaits:
    """How long a run waits for a spare before it goes on with fewer ranks, and for room before it grows.

    There must have been room for more during ``grow_after_s`` before the run stops at a checkpoint to grow.
    The ``metadata`` of a field bound what a spec may say.
    """

    wait_for_spare_s: float = field(default=60.0, metadata={"ge": 0})
    grow_after_s: float = field(default=300.0, metadata={"ge": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedStart:
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """There is ``room`` for fewer than ``wanted`` ranks. After ``for_s`` more seconds the run goes on with
    fewer.
    """

    wanted: int
    room: int
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a driver remembers between decisions about sizes.

    ``wanted`` is the size that it expects, and ``waits_since_s`` since when it has wanted to start at that
    size. ``more_since_s`` is since when there has been room for more ranks than run.
    """

    wanted: int
    waits_since_s: float | None = None
    more_since_s: float | None = None


def sizes_between(smallest: int, largest: int, batch: DividedBatch) -> tuple[int, ...]:
    """The sizes that the batch can be divided among, ascending."""
    return tuple(size for size in range(smallest, largest + 1) if batch.divides(size))


def refusal(smallest: int, largest: int, batch: DividedBatch) -> str | None:
    """Why a run cannot change between these two sizes; None if the batch can be divided at both."""
    wrong = next((size for size in (smallest, largest) if not batch.divides(size)), None)
    if wrong is None:
        return None
    too_many = f"can't be divided among {ranks(wrong)} with micro-batches of {batch.micro_batch}"
    if batch.sequences % (wrong * batch.micro_batch):
        would_do = ", ".join(map(str, sizes_between(1, largest, batch)))
        return f"world_size: the {batch.sequences} sequences of a step {too_many}; sizes that do: {would_do}"
    multiple = lcm(smallest, largest) * batch.micro_batch
    return f"eval.samples: {batch.eval_samples} {too_many}; expected a multiple of {multiple}"


def ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def choose(
    sizes: Sequence[int], outlook: Outlook, *, room: int, now_s: float, patience: ResizeWaits
) -> tuple[SizedStart | Wait, Outlook]:
    """The size, one of ``sizes`` (ascending), at which an attempt starts that could have ``room`` devices
    now.

    The expected size starts at once; a smaller one starts only after the wait for a spare, and a larger one
    where ``look_for_more`` would move on to it. If not even the smallest fits, the smallest is asked for. A
    run with a single size never waits here.
    """
    _, outlook = look_for_more(sizes, outlook, room=room, now_s=now_s, patience=patience)
    most = min(room, outlook.wanted)
    best = max((size for size in sizes if size <= most), default=sizes[0])
    since_s = now_s if outlook.waits_since_s is None else outlook.waits_since_s
    left_s = since_s + patience.wait_for_spare_s - now_s
    if best < outlook.wanted and left_s > 0:
        waits = Wait(wanted=outlook.wanted, room=room, for_s=left_s)
        return waits, replace(outlook, waits_since_s=since_s)
    return SizedStart(world_size=best), replace(outlook, wanted=best, waits_since_s=since_s)


def began(outlook: Outlook) -> Outlook:
    """Ranks are running: resets the clocks."""
    return Outlook(wanted=outlook.wanted)


def look_for_more(
    sizes: Sequence[int], outlook: Outlook, *, room: int | None, now_s: float, patience: ResizeWaits
) -> tuple[int | None, Outlook]:
    """A larger size to move on to while ``outlook.wanted`` ranks run or are about to, or None.

    There must have been room for a larger size for ``grow_after_s`` without a break. ``room`` includes the
    devices of the running ranks. None means unknown, which is a break.
    """
    larger = max((size for size in sizes if outlook.wanted < size <= (room or 0)), default=None)
    if larger is None:
        return None, replace(outlook, more_since_s=None)
    since_s = now_s if outlook.more_since_s is None else outlook.more_since_s
    if now_s - since_s < patience.grow_after_s:
        return None, replace(outlook, more_since_s=since_s)
    return larger, Outlook(wanted=larger)
