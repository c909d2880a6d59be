"""Chooses the hosts that keep copies of other hosts' saves, and who brings what to whom at a restart. Pure.

A copy never lies on its owner's host, nor in the same failure domain where labels name domains: both would be
lost together.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank is. ``domain`` is what fails together with its host, such as a rack; empty if nobody has
    said.
    """

    node: str
    domain: str = ""

    def may_keep_for(self, other: "Seat") -> bool:
        """Says whether this node outlives what takes the ``other`` one."""
        return not self.domain or self.domain != other.domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Rank ``source`` sends the share of rank ``share`` to rank ``target``, on whose host it is missing."""

    share: int
    source: int
    target: int


def keepers(seats: Sequence[Seat], num_copies: int) -> list[tuple[int, ...]]:
    """Returns for each rank the ranks that keep copies of its shares, at most ``num_copies``, each on another
    host. There are fewer where too few hosts are apart from its own.

    Hosts of one size keep equally much, wherever that is possible.
    """
    hosts = {seat.node: seat for seat in seats}
    ranks = _ranks_by_node(seats)
    chosen: dict[str, list[str]] = {node: [] for node in hosts}
    num_kept = Counter[str]()
    load = dict.fromkeys(hosts, 0.0)
    # Of ten thousand hosts the first or second one will do, and need not be compared with all.
    num_with = Counter(load.values())
    order = list(hosts)
    for _ in range(num_copies):
        for place, node in enumerate(order):
            others = (order[(place + step) % len(order)] for step in range(1, len(order)))
            free = (one for one in others if one not in chosen[node] and hosts[one].may_keep_for(hosts[node]))
            if (keeper := _least_loaded(free, load, min(num_with))) is not None:
                chosen[node].append(keeper)
                num_with -= Counter([load[keeper]])
                num_kept[keeper] += len(ranks[node])
                load[keeper] = num_kept[keeper] / len(ranks[keeper])
                num_with[load[keeper]] += 1
    return [
        tuple(ranks[one][ranks[seat.node].index(rank) % len(ranks[one])] for one in chosen[seat.node])
        for rank, seat in enumerate(seats)
    ]


def _least_loaded(hosts: Iterable[str], load: Mapping[str, float], least: float) -> str | None:
    """The first of those that have the least to keep; no host has less than ``least``."""
    best = None
    for host in hosts:
        if load[host] == least:
            return host
        if best is None or load[host] < load[best]:
            best = host
    return best


def missing(
    node: str, seats: Sequence[Seat], held: Sequence[Collection[int]], needed: Sequence[Collection[int]]
) -> set[int]:
    """Returns the shares that ranks of ``node`` load and that don't lie there; see ``moves``."""
    return _missing([rank for rank, seat in enumerate(seats) if seat.node == node], held, needed)


def moves(
    seats: Sequence[Seat], held: Sequence[Collection[int]], needed: Sequence[Collection[int]]
) -> list[Move]:
    """Returns who brings which shares to whom, so that each host has what its ranks need.

    ``held`` says of each rank which shares lie on its host, and ``needed`` which it loads. A share that lies
    nowhere is left out. All ranks carry the moves out in this order.
    """
    found: list[Move] = []
    load: Counter[int] = Counter()
    holders: dict[int, list[int]] = {}
    for rank, shares in enumerate(held):
        for share in shares:
            holders.setdefault(share, []).append(rank)
    for ranks in _ranks_by_node(seats).values():
        for share in sorted(_missing(ranks, held, needed) & holders.keys()):
            source = min(holders[share], key=lambda rank: load[rank])
            load[source] += 1
            found.append(Move(share=share, source=source, target=ranks[0]))
    return found


def _missing(
    ranks: Sequence[int], held: Sequence[Collection[int]], needed: Sequence[Collection[int]]
) -> set[int]:
    there = {share for rank in ranks for share in held[rank]}
    return {share for rank in ranks for share in needed[rank]} - there


def _ranks_by_node(seats: Sequence[Seat]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, seat in enumerate(seats):
        ranks.setdefault(seat.node, []).append(rank)
    return ranks
