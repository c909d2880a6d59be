"""Brings what lies in other hosts' memory to where it is loaded, and finds another copy of what is damaged.

Ranks do so together or not at all: if one of them has no room, the next tier is read by all.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from checkpointing.errors import Corrupt
from checkpointing.format.loading import verify
from checkpointing.saving.peers import missing, moves
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


def bring_missing(saved: SavedRun, context: Context, source: Source, offer: Offer) -> None:
    """Each host gets what its ranks need and it lacks. What fails to come is found missing when it is loaded.
    Collective.
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
    for move in plan:
        if context.rank == move.source:
            share = next(one for one in _held(source, cut.generation) if one.part.rank == move.share)
            bring(group, share, to=move.target)
        elif context.rank == move.target:
            # Nothing is asked for again here that another rank would wait for: there was room.
            receive(group, {move.source: move.share}, source.memory, most_bytes=sizes[move.share])
    # Nobody may be in the group any more when it is closed.
    gather(True, bool)
    group.close()


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
