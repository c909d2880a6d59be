"""A rank that has lost a peer leaves its last whole state in its host's memory, so that no step is lost.

This needs ranks that hold what others save: all of them under ddp, replicas under fsdp. Such a rank writes
the shares of all ranks whose state it holds, as those would have saved them. It can't ask anybody: the others
may be gone. So each host writes all that its ranks hold, and a restart finds out what is whole.

Nothing of a step reaches parameters and moments before its update. So the state stays whole while a rank
waits in a collective, and another thread may copy it then. Once it does, this rank never updates again.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from checkpointing.format.digests import digests
from checkpointing.format.manifest import Cut
from checkpointing.saving.memory_tier import MemoryTier
from checkpointing.saving.snapshot import Arena, Piece, layout
from jobs.training.ranks.gathering import gather
from jobs.training.state.near_tiers import memory_tier
from jobs.training.state.random_state import RandomState, digest_of_next_numbers, pieces_as_told
from jobs.training.state.saved_run import EngineState, SavedOrder, SavedRun, cut_of, part_of, saved_run
from jobs.training.strategies.contract import Engine
from jobs.training.task.context import Context
from jobs.training.task.position import StepPoint
from jobs.training.task.task import Task

_log = logging.getLogger(__name__)

# Follows every number of an ordinary save: of two saves of one step it is the newer one.
_NUMBER = 10**9
# All ranks know all ranks' random states, of 14 KB each.
_MOST_RANKS = 512
# So many bytes at least are copied and written in a second, once that has begun.
_BYTES_PER_S = 200e6
_LEAST_S = 2.0


class PeersLost(Exception):
    """This rank's state was left for the next attempt: it may not change any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfRank:
    """What each rank tells the others when an attempt begins."""

    random: dict[str, str]
    canary: str


class LastState:
    """Use ``changes`` before each update and ``is_whole`` after it. ``leave`` may be called by any thread.

    Making one is collective. ``will_leave`` is told how many seconds that may take, at most. The tier may
    hold ``max_bytes`` in all.
    """

    def __init__(
        self,
        saved: SavedRun,
        tier: MemoryTier,
        context: Context,
        engine: Engine,
        order: SavedOrder,
        will_leave: Callable[[float], None],
        max_bytes: int | None = None,
    ) -> None:
        self._saved = saved
        self._tier = tier
        self._context = context
        self._engine = engine
        self._order = order
        self._will_leave = will_leave
        self._max_bytes = max_bytes
        own = _OfRank(
            random=RandomState(context.rank, context.device).told(),
            canary=digest_of_next_numbers(context.device),
        )
        self._told: Sequence[_OfRank] = gather(own, _OfRank)
        # Inside a step a module may have others in their place, as FSDP's does.
        self._shares = {rank: self._pieces(rank) for rank in engine.holds}
        self._turns = threading.Condition()
        self._point: StepPoint | None = None
        self._is_left: bool | None = None

    def changes(self) -> None:
        """Waits for a copy that is on its way, and then raises ``PeersLost``."""
        with self._turns:
            if self._is_left is not None:
                raise PeersLost("a peer is gone, and the state was left for the next attempt")
            self._point = None

    def is_whole(self, point: StepPoint, *, is_crossed: bool) -> None:
        """All of the update that ended at ``point`` is done. ``is_crossed``: so is what follows it, as the
        evaluation and the save of an epoch's end.
        """
        with self._turns:
            self._point = point if is_crossed else replace(point, is_evaluation_due=point.is_evaluated)
            self._turns.notify_all()

    def leave(self, *, within_s: float = 0.0) -> bool:
        """Leaves the state once it is whole, if that is soon; returns whether it is left. The first call that
        finds it whole does so.
        """
        with self._turns:
            if self._is_left is None and self._turns.wait_for(lambda: self._point is not None, within_s):
                assert self._point is not None
                self._is_left = False
                try:
                    self._is_left = self._write(self._point)
                except Exception:
                    _log.exception("the last state can't be left; the next attempt uses an older one")
            return self._is_left or False

    def forbid(self) -> None:
        """From now on nothing is left: the state may be wrong, or another attempt goes on already."""
        with self._turns:
            self._is_left = self._is_left or False

    def _write(self, point: StepPoint) -> bool:
        if not self._draws_nothing():
            return False
        sizes = [layout(pieces).num_bytes for pieces in self._shares.values()]
        # Each share is copied once more on its way.
        if sum(sizes) + max(sizes) > self._tier.free_bytes() or sum(sizes) > self._allowed_bytes():
            return False
        self._will_leave(_LEAST_S + sum(sizes) / _BYTES_PER_S)
        description = EngineState(self._engine).description()
        cut = cut_of(self._saved, point, _NUMBER, self._order, description)
        for rank in self._own_first([*self._shares]):
            if not self._tier.has(cut, rank):
                self._put(cut, rank)
        return True

    def _allowed_bytes(self) -> float:
        if self._max_bytes is None:
            return inf
        return self._max_bytes - sum(part.num_bytes for _, part in self._tier.inventory())

    def _draws_nothing(self) -> bool:
        """Whether random numbers are where they were at the start. If so, the lost ranks' are as well."""
        own = RandomState(self._context.rank, self._context.device).told()
        return own == self._told[self._context.rank].random

    def _pieces(self, rank: int) -> list[Piece]:
        return self._engine.pieces_of(rank) + pieces_as_told(rank, self._told[rank].random)

    def _own_first(self, ranks: list[int]) -> list[int]:
        """In an order in which the ranks of a host begin with different shares."""
        begin = ranks.index(self._context.rank)
        return ranks[begin:] + ranks[:begin]

    def _put(self, cut: Cut, rank: int) -> None:
        pieces = self._shares[rank]
        form = layout(pieces)
        arena = Arena(pieces, form)
        arena.take(pieces)
        part = part_of(rank, form, self._told[rank].canary)
        self._tier.keep_beside(cut, replace(part, chunks=digests(arena.data)), arena.data)


def last_state_of(
    task: Task,
    context: Context,
    engine: Engine,
    order: SavedOrder,
    will_leave: Callable[[float], None] = lambda seconds: None,
) -> LastState | None:
    """None where ranks hold nothing of each other's state, or keep nothing in memory. Collective.

    On a device nothing is left: its host may have launched the update whose gradients never come.
    """
    saving = task.saving
    tier = memory_tier(saving, saved_run(task)) if saving else None
    is_worth_it = 1 < context.world_size <= _MOST_RANKS and len(engine.holds) > 1
    if tier is None or not is_worth_it or context.device.type != "cpu":
        return None
    max_bytes = saving.memory.max_bytes if saving and saving.memory else None
    return LastState(saved_run(task), tier, context, engine, order, will_leave, max_bytes)
