"""Brings what lies in other hosts' memory to where it is loaded, and finds another copy of what is damaged.

Ranks do so together or not at all: if one of them has no room, the next tier is read by all.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from checkpointing.errors import Corrupt
from checkpointing.format.loading import verify
from checkpointing.format.manifest import Cut
from checkpointing.saving.peers import Move, missing, moves
from checkpointing.stores.contract import StoreError
from cluster.probe.gloo_store import GlooGroup
from cluster.probe.meeting import prove
from jobs.training.ranks.gathering import gather
from jobs.training.state.choosing import Offer, Source, needed_by
from jobs.training.state.saved_run import SavedRun
from jobs.training.state.share_copies import Held, bring, receive
from jobs.training.task.context import Context

# A rank that brings or receives shares waits for another one for so long at most.
_BRINGING_S = 600.0
# What is damaged on its way was whole where it came from.
_MOST_TRIES = 3


def bring_missing(saved: SavedRun, context: Context, source: Source, offer: Offer) -> None:
    """Each host gets what its ranks need and it lacks. What did not come whole is sent again; what fails to
    come is found missing when it is loaded. Collective.
    """
    if source.seats is None or source.memory is None or offer.held is None:
        return
    assert offer.manifest is not None
    cut = offer.manifest.cut
    needed = needed_by(saved, cut, context.world_size)
    sizes = {share: size for held in offer.held for share, size in held.items()}
    coming = [sizes[share] for share in missing(context.node, source.seats, offer.held, needed)]
    # Without room on one host the next tier is read by all.
    if not all(gather(_has_room(source, coming), bool)):
        return
    # After that: if each of very many ranks lacks all shares, they are very many moves.
    if not (plan := moves(source.seats, offer.held, needed)):
        return
    group = GlooGroup(context.key, _BRINGING_S)
    prove(context.key, group)
    for number in range(_MOST_TRIES):
        part = _Part(source, context.rank, group, cut, sizes, is_again=number > 0)
        lost = [(move.share, move.target) for move in plan if not part.of(move)]
        # Nobody may be in the group any more when it is closed.
        everywhere = {one for of_rank in gather(lost, list[tuple[int, int]]) for one in of_rank}
        plan = [move for move in plan if (move.share, move.target) in everywhere]
        if not plan:
            break
    group.close()


@dataclass(frozen=True, slots=True)
class _Part:
    """A rank's part in moves of shares of ``cut``. ``sizes`` are by share."""

    source: Source
    rank: int
    group: GlooGroup
    cut: Cut
    sizes: Mapping[int, int]
    is_again: bool

    def of(self, move: Move) -> bool:
        """Does it; returns whether it did not fail here."""
        if self.rank == move.source:
            share = next(
                one for one in _held(self.source, self.cut.generation) if one.part.rank == move.share
            )
            # What did not come may have been damaged on its way. Else it need not go there once more.
            is_lost = self.is_again and _is_damaged(share)
            bring(self.group, None if is_lost else share, to=move.target)
        elif self.rank == move.target:
            assert self.source.memory is not None
            # Nothing is asked for again here that another rank would wait for: there was room.
            shares, most_bytes = {move.source: move.share}, self.sizes[move.share]
            return not receive(self.group, shares, self.source.memory, most_bytes=most_bytes)
        return True


def _has_room(source: Source, coming: Sequence[int]) -> bool:
    if not coming:
        return True
    if source.memory is None or source.memory not in source.tiers:
        # Nothing could be kept where nothing could be read.
        return False
    try:
        # Each is compared before it is kept.
        return sum(coming) + max(coming) <= source.memory.free_bytes()
    except OSError:
        return False


def without_damaged(
    saved: SavedRun, context: Context, source: Source, offer: Offer
) -> tuple[Source, Offer] | None:
    """Returns what is left once each host has compared what it holds in memory with its digests; None if none
    of it is damaged, or what is left is not all that ranks need. Collective.
    """
    if source.seats is None or offer.held is None:
        return None
    assert offer.manifest is not None
    cut = offer.manifest.cut
    damaged = [one for one in _held(source, cut.generation) if one.tier is source.memory and _is_damaged(one)]
    left = [one for one in source.held if one not in damaged]
    left += [other for one in damaged for other in _elsewhere_here(source, one)]
    own = [(one.part.rank, one.part.num_bytes) for one in left if one.cut.generation == cut.generation]
    found = gather((own, bool(damaged)), tuple[list[tuple[int, int]], bool])
    held = [dict(of_rank) for of_rank, _ in found]
    everywhere = frozenset[int]().union(*held)
    needed = {*needed_by(saved, cut, context.world_size)}
    is_any_damaged = any(is_damaged for _, is_damaged in found)
    if not is_any_damaged or not all(need <= everywhere for need in needed):
        return None
    return replace(source, held=left), replace(offer, held=held)


def _elsewhere_here(source: Source, damaged: Held) -> list[Held]:
    """The same share where it lies whole on this host's disk; empty if it does not."""
    found = []
    for tier in source.tiers:
        with suppress(StoreError):
            found += [Held(tier=tier, cut=cut, part=part) for cut, part in tier.inventory()]
    same = [
        one
        for one in found
        if one.tier is not source.memory
        and (one.cut.generation, one.part.rank) == (damaged.cut.generation, damaged.part.rank)
        and one.part.chunks == damaged.part.chunks
    ]
    return [one for one in same if not _is_damaged(one)][:1]


def drop_damaged(source: Source) -> None:
    """Deletes what is damaged in this host's memory, so that no later start takes it for whole."""
    for one in source.held:
        if source.memory is not None and one.tier is source.memory and _is_damaged(one):
            with suppress(StoreError):
                source.memory.drop(one.cut, one.part)


def _held(source: Source, generation: str) -> list[Held]:
    return [one for one in source.held if one.cut.generation == generation]


def _is_damaged(share: Held) -> bool:
    try:
        verify(share.part, share.tier.place(share.cut.generation))
    except (Corrupt, StoreError):
        return True
    return False
