"""Decides when to save and where to. Pure. Rank 0 asks once per step and tells the other ranks the answer."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When to save. ``every_steps`` replaces ``every_s``.

    Every ``disk_every``-th save goes to the nodes' disks and every ``store_every``-th to the store; 0 means
    none. The ends of epochs and evaluated steps always go to the store. Every ``memory_every_steps``-th step
    is saved in the hosts' memory, as is whatever is saved elsewhere; None means never.
    """

    every_s: float | None = 60.0
    every_steps: int | None = None
    disk_every: int = 1
    store_every: int = 1
    on_busy: Literal["skip", "wait"] = "skip"
    memory_every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesSoFar:
    """The saves of this attempt so far. ``num_due`` also counts saves that were skipped."""

    last_s: float
    num_due: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Says for each place whether an earlier save of some rank is still on its way there.

    ``is_disk_failing``: the last save of some rank to its node's disk failed. ``epochs_end``: what is on its
    way to the store is the end of an epoch.
    """

    disk: bool = False
    store: bool = False
    memory: bool = False
    is_disk_failing: bool = False
    epochs_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One save to make. If ``must_wait``, it waits for saves on their way; otherwise it would have been
    skipped.
    """

    to_disk: bool
    to_store: bool
    must_wait: bool = False
    to_memory: bool = False

    @property
    def is_for_memory_alone(self) -> bool:
        return self.to_memory and not self.to_disk and not self.to_store


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSave:
    """A save was due, but the save before it is still on its way to the disk and the store."""


def next_order(
    cadence: Cadence,
    past: SavesSoFar,
    *,
    step: int,
    now_s: float,
    busy: Busy,
    is_epoch_end: bool,
    is_evaluated: bool = False,
) -> tuple[Order | SkippedSave | None, SavesSoFar]:
    """Decides whether to save after ``step`` (counted from 1), and returns what to remember.

    An evaluated step is always saved to the store, since the best one can only be kept if it is durable.
    While the disk of any node fails, the disks hold no whole generation, and each save for them goes to the
    store too. If ``on_busy`` is ``skip``, only the end of an epoch waits for a busy place.
    """
    if is_epoch_end:
        return _everywhere(cadence), replace(past, last_s=now_s)
    if not is_evaluated and not _is_due(cadence, past, step, now_s):
        return None, past
    number = past.num_due + 1
    past = SavesSoFar(last_s=now_s, num_due=number)
    to_disk = _is_turn(number, cadence.disk_every)
    is_instead = to_disk and busy.is_disk_failing
    wanted = Order(
        to_disk=to_disk,
        to_store=is_evaluated or is_instead or _is_turn(number, cadence.store_every),
        must_wait=cadence.on_busy == "wait",
    )
    if not wanted.to_disk and not wanted.to_store:
        return None, past
    return (wanted if wanted.must_wait else _without_busy(wanted, busy)), past


def with_memory(
    cadence: Cadence, found: Order | SkippedSave | None, *, step: int, busy: Busy
) -> Order | SkippedSave | None:
    """Adds the hosts' memory to what ``next_order`` has found for ``step``. It is never waited for: a save
    there that is due while one is on its way is left out.
    """
    every = cadence.memory_every_steps
    if every is None or busy.memory or isinstance(found, SkippedSave):
        return found
    if found is not None:
        return replace(found, to_memory=True)
    return Order(to_disk=False, to_store=False, to_memory=True) if step % every == 0 else None


def behind_epochs_end(found: Order | SkippedSave | None, *, busy: Busy) -> Order | SkippedSave | None:
    """While an epoch's end is on its way to the store, the nodes alone get nothing from behind it: a run that
    came back from there would never store it. Who waits for a busy place waits for that end too.
    """
    if not busy.epochs_end or not isinstance(found, Order) or found.to_store:
        return found
    if found.must_wait:
        return replace(found, to_store=True)
    return None if found.is_for_memory_alone else SkippedSave()


def busy_after(order: Order, before: Busy, *, is_epochs_end: bool = False) -> Busy:
    """What may be busy after the cut of ``order``. ``before`` is from before it, and says nothing of it.

    Memory alone takes one of two arenas, for as long as a copy lasts; the other one is free unless a save is
    on its way to the store.
    """
    if not order.is_for_memory_alone:
        return Busy(disk=True, store=True, memory=True, epochs_end=is_epochs_end or before.epochs_end)
    return replace(before, memory=True, disk=before.disk or before.store)


def _everywhere(cadence: Cadence) -> Order:
    return Order(to_disk=cadence.disk_every > 0, to_store=True, must_wait=True)


def _without_busy(wanted: Order, busy: Busy) -> Order | SkippedSave:
    to_disk, to_store = wanted.to_disk and not busy.disk, wanted.to_store and not busy.store
    return replace(wanted, to_disk=to_disk, to_store=to_store) if to_disk or to_store else SkippedSave()


def _is_due(cadence: Cadence, past: SavesSoFar, step: int, now_s: float) -> bool:
    if cadence.every_steps is not None:
        return step % cadence.every_steps == 0
    return cadence.every_s is not None and now_s - past.last_s >= cadence.every_s


def _is_turn(number: int, every: int) -> bool:
    return every > 0 and number % every == 0
