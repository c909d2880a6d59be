"""How much of a node's disk a run's saves may take, and what goes first. Pure.

The budget is kept to before a save is written, so that the disk never gets full. The oldest shares go first.
Each rank keeps its newest share, unless the store has verified something newer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.format.manifest import Cut, FilePart
from checkpointing.log.history import Generation

Share = tuple[Cut, FilePart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``max_bytes`` bounds the shares of one run on one node, on which ``num_ranks`` ranks save at once."""

    max_bytes: int | None = None
    num_ranks: int = 1

    def allowed(self, held_bytes: int, free_bytes: int | None) -> int | None:
        """Returns how many bytes there may be: ``max_bytes``, and never more than nine tenths of what the
        disk has for us. None is no bound.
        """
        by_disk = None if free_bytes is None else (held_bytes + free_bytes) * 9 // 10
        bounds = [bound for bound in (self.max_bytes, by_disk) if bound is not None]
        return min(bounds, default=None)


def oldest_first(shares: Sequence[Share]) -> list[Share]:
    return sorted(shares, key=age)


def to_free(
    shares: Sequence[Share], excess_bytes: int, *, good: Generation | None
) -> tuple[Share, ...] | None:
    """Returns the shares to delete, so that at least ``excess_bytes`` are free; None if that is impossible.

    ``good`` is the newest generation that the store has verified.
    """
    newest = {part.rank: age((cut, part)) for cut, part in oldest_first(shares)}
    freed: list[Share] = []
    for share in oldest_first(shares):
        if excess_bytes <= 0:
            break
        is_safe = good is not None and age(share) < (good.term, good.number)
        if is_safe or age(share) < newest[share[1].rank]:
            freed.append(share)
            excess_bytes -= share[1].num_bytes
    return tuple(freed) if excess_bytes <= 0 else None


def age(share: Share) -> tuple[int, int]:
    """What orders the saves of a run: newer ones have a greater one."""
    return share[0].term, share[0].number
