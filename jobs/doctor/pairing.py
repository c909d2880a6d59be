"""Which nodes of a group try their link at the same time, so that no two tests share a node. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")

# A link of less than this part of the median of its group is worth a look.
SLOW_LINK = 1 / 3

# Of more nodes each tries its neighbours in the list alone: all pairs of a thousand would take hours.
MOST_FOR_ALL_PAIRS = 16


def rounds(nodes: Sequence[T]) -> Iterator[list[tuple[T, T]]]:
    """Rounds of pairs that share no node: each pair once, or of very many nodes a ring. None of two nodes,
    whose only pair is the group.
    """
    if len(nodes) > MOST_FOR_ALL_PAIRS:
        yield from _ring(nodes)
    elif len(nodes) > 2:
        yield from _all_pairs(nodes)


def _all_pairs(nodes: Sequence[T]) -> Iterator[list[tuple[T, T]]]:
    """As in a tournament: one stays, the others move on by a seat. An odd one out rests."""
    seats: list[T | None] = [*nodes, *([None] * (len(nodes) % 2))]
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        yield [(one, other) for one, other in facing if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _ring(nodes: Sequence[T]) -> Iterator[list[tuple[T, T]]]:
    pairs = list(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
    even = len(nodes) - len(nodes) % 2
    yield from (turn for turn in (pairs[:even:2], pairs[1:even:2], pairs[even:]) if turn)


def shares_of_slow_links(rates: Mapping[T, float]) -> dict[T, float]:
    """Returns what part of the usual rate each slow link reaches."""
    usual = median(rates.values()) if rates else 0.0
    return {pair: rate / usual for pair, rate in rates.items() if rate < SLOW_LINK * usual}
