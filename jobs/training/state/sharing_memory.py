"""The memory tier of a run over several hosts: who keeps whose copies, and whether there is room for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.errors import Unfit
from checkpointing.saving.memory_tier import MOST_SAVES, MemoryTier
from checkpointing.saving.pace import Pace
from checkpointing.saving.peers import Seat, keepers
from checkpointing.stores.contract import StoreError
from cluster.probe.gloo_store import GlooGroup
from cluster.probe.meeting import prove
from jobs.training.ranks.gathering import gather
from jobs.training.state.share_copies import ShareCopies
from jobs.training.task.context import Context
from jobs.training.task.task import MemorySaving, Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A rank's seat, the size of its share, and how much its node may keep; None if nobody knows."""

    seat: Seat
    share_bytes: int
    free_bytes: int | None


def share_memory(tier: MemoryTier, saving: Saving, context: Context, share_bytes: int) -> ShareCopies:
    """Collective. Raises ``Unfit`` on all ranks if a node has too little memory."""
    assert saving.memory is not None
    own = _Place(seat=seat_of(context), share_bytes=share_bytes, free_bytes=_free_bytes(tier))
    places = gather(own, _Place)
    chosen = keepers([place.seat for place in places], saving.memory.num_copies)
    _refuse_without_room(saving.memory, places, chosen)
    rank, group = context.rank, None
    if any(chosen):
        group = GlooGroup(context.key, saving.deadline_s)
        # Who is in a rank's seat could give it any share, with its digests.
        prove(context.key, group)
    status = context.status
    return ShareCopies(
        tier,
        group,
        keepers=chosen[rank],
        sources=_sources(chosen)[rank],
        most_bytes=max(place.share_bytes for place in places),
        pace=Pace(lambda: (status.step, status.step_s)),
    )


def seat_of(context: Context) -> Seat:
    return Seat(node=context.node, domain=context.domain)


def _sources(chosen: Sequence[Sequence[int]]) -> list[list[int]]:
    """By rank, whose copies it keeps."""
    found: list[list[int]] = [[] for _ in chosen]
    for rank, its_keepers in enumerate(chosen):
        for keeper in its_keepers:
            found[keeper].append(rank)
    return found


def _refuse_without_room(
    wanted: MemorySaving, places: Sequence[_Place], chosen: Sequence[Sequence[int]]
) -> None:
    by_node: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault(place.seat.node, []).append(rank)
    kept = _sources(chosen)
    for node, ranks in by_node.items():
        sources = [source for rank in ranks for source in kept[rank]]
        num_bytes = MOST_SAVES * sum(places[rank].share_bytes for rank in (*ranks, *sources))
        # A copy is compared before it is kept.
        num_bytes += sum(places[source].share_bytes for source in sources)
        bounds = [free for rank in ranks if (free := places[rank].free_bytes) is not None]
        bounds += [] if wanted.max_bytes is None else [wanted.max_bytes]
        allowed = min(bounds, default=num_bytes)
        if num_bytes > allowed:
            limit = " by checkpoint.memory.max_bytes" if allowed == wanted.max_bytes else ""
            raise Unfit(
                f"checkpoint.memory: node {node} would keep {_gigabytes(num_bytes)} in {wanted.folder} (two "
                f"saves of its {len(ranks)} ranks and of {len(sources)} copies), and there are "
                f"{_gigabytes(allowed)}{limit}; make room, ask for fewer copies, or leave the key out"
            )


def _free_bytes(tier: MemoryTier) -> int | None:
    """What this node may have in all, with what it has already; None if nobody knows."""
    try:
        return tier.free_bytes() + sum(part.num_bytes for _, part in tier.inventory())
    except (StoreError, OSError):
        # Each save there will say why, and the others go on.
        return None


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.3g} GB"
