"""Requests and an inventory -> where each would run, or the reason why it never can. Pure.

``place`` says what is *possible*, each request with everything free. ``schedule`` says where many requests
go that share the devices. When something really starts is decided by queueing. Nobody is placed on the
nodes that a group excludes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.inventory import Inventory, Node, Request, WorkerGroup

# A node as it is sorted: what it has free, below zero, and its id. And how many workers go there.
_Entry = tuple[int, str]
_Taken = tuple[_Entry, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    node_id: str
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The request's nodes on its one group, the one with the most room first."""

    group: str
    shares: tuple[Share, ...]

    def describe(self) -> str:
        return f"{self.group}: " + " + ".join(
            f"{share.num_workers} on {share.node_id}" for share in self.shares
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """``wave`` 0 can start at once; each other one as soon as those of the wave before have ended."""

    wave: int
    placed: Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str


def room(group: WorkerGroup, free: Mapping[str, Mapping[str, float]]) -> int:
    """How many workers that share nodes could start now; ``free`` are Ray's resources by node id.

    A node that is not in it is away. A worker needs a core, and beside it the group's device, if it has one.
    """
    needed = ("CPU",) if group.vendor == "cpu" else ("CPU", "GPU")
    on_nodes = (free.get(node.node_id, {}) for node in group.nodes)
    return sum(int(min(there.get(name, 0.0) for name in needed)) for there in on_nodes)


def place(requests: Sequence[Request], inventory: Inventory) -> list[Placed | Refused]:
    """One answer per request, in their order; equal requests get equal answers."""
    answers: dict[Request, Placed | Refused] = {}
    for request in requests:
        if request not in answers:
            answers[request] = _place(request, inventory)
    return [answers[request] for request in requests]


def schedule(
    requests: Iterable[Request], inventory: Inventory, *, in_use: Mapping[str, int] | None = None
) -> list[Scheduled | Refused]:
    """One answer per request, in their order. No device is given twice in a wave of its group.

    Nobody of a group overtakes: a request joins its group's newest wave or opens the next. ``in_use`` counts
    the devices by node that the first wave has to do without; the later ones don't.
    """
    lanes = {group.name: _Lane(group, in_use or {}) for group in inventory.groups}
    return [
        lanes[request.group].add(request) if request.group in lanes else _no_group(request, inventory)
        for request in requests
    ]


def _place(request: Request, inventory: Inventory) -> Placed | Refused:
    group = inventory.group(request.group)
    if group is None:
        return _no_group(request, inventory)
    taken = _Room(group.nodes).take(request)
    if taken is None:
        return _too_small(request, group)
    shares = (Share(node_id=node_id, num_workers=num) for (_, node_id), num in taken)
    return Placed(group=group.name, shares=tuple(shares))


def _no_group(request: Request, inventory: Inventory) -> Refused:
    known = ", ".join(sorted(group.name for group in inventory.groups)) or "none"
    return Refused(reason=f"there is no group {request.group!r} in {inventory.source} (groups: {known})")


def _too_small(request: Request, group: WorkerGroup) -> Refused:
    devices = "device" if group.num_devices == 1 else "devices"
    nodes = "node" if len(group.nodes) == 1 else "nodes"
    without = f" without {_left_out(group.excluded)}" if group.excluded else ""
    return Refused(
        reason=f"{group.name} has {group.num_devices} {devices} on {len(group.nodes)} {nodes}{without}, "
        f"{request.num_workers} were asked for"
    )


def _left_out(nodes: Sequence[Node]) -> str:
    why = {True: "draining", False: "excluded"}
    return ", ".join(sorted(f"{node.node_id} ({why[node.is_draining]})" for node in nodes))


class _Lane:
    """One group's requests, wave after wave."""

    def __init__(self, group: WorkerGroup, in_use: Mapping[str, int]) -> None:
        self._group = group
        self._num_devices = group.num_devices
        self._empty = _Room(group.nodes)
        self._room = _Room(group.nodes, in_use)
        self._wave = 0
        self._shares: dict[tuple[str, int], Share] = {}

    def add(self, request: Request) -> Scheduled | Refused:
        if request.num_workers > self._num_devices:
            return _too_small(request, self._group)
        taken = self._room.take(request)
        if taken is None:
            self._wave += 1
            self._room = self._empty.copy()
            taken = self._room.take(request)
            assert taken is not None, "a group that nobody uses has room for what isn't too large for it"
        shares = tuple(self._share(node_id, num) for (_, node_id), num in taken)
        return Scheduled(wave=self._wave, placed=Placed(group=self._group.name, shares=shares))

    def _share(self, node_id: str, num_workers: int) -> Share:
        """The same again and again: making them anew would be most of the work of a large schedule."""
        found = self._shares.get((node_id, num_workers))
        if found is None:
            found = self._shares[node_id, num_workers] = Share(node_id=node_id, num_workers=num_workers)
        return found


class _Room:
    """What is free on the nodes of one group, the node with the most first, equals by their ids.

    Nodes with nothing on them are kept a second time: a whole-node request takes from those alone.
    """

    def __init__(self, nodes: Iterable[Node], in_use: Mapping[str, int] | None = None) -> None:
        free = [(node, node.num_devices - (in_use or {}).get(node.node_id, 0)) for node in nodes]
        self._free = sorted((-left, node.node_id) for node, left in free if left > 0)
        self._untouched = sorted((-left, node.node_id) for node, left in free if left == node.num_devices > 0)
        self._num_free = sum(left for _, left in free if left > 0)
        self._num_untouched = -sum(left for left, _ in self._untouched)

    def copy(self) -> "_Room":
        twin = _Room(())
        twin._free, twin._untouched = self._free.copy(), self._untouched.copy()
        twin._num_free, twin._num_untouched = self._num_free, self._num_untouched
        return twin

    def take(self, request: Request) -> list[_Taken] | None:
        """None, and nothing taken, if it does not fit."""
        is_alone = request.mode == "whole_node"
        if request.num_workers > (self._num_untouched if is_alone else self._num_free):
            return None
        if request.mode == "spread":
            taken = _evenly(self._free, request.num_workers)
        else:
            taken = _fewest(self._untouched if is_alone else self._free, request.num_workers)
        self._give(taken, is_alone=is_alone)
        return taken

    def _give(self, taken: Sequence[_Taken], *, is_alone: bool) -> None:
        entries = [entry for entry, _ in taken]
        self._num_free -= _remove(self._free, entries)
        self._num_untouched -= _remove(self._untouched, entries)
        if not is_alone:
            left = [(free + num, node_id) for (free, node_id), num in taken if free + num < 0]
            self._num_free -= sum(free for free, _ in left)
            self._free += left
            self._free.sort()


def _remove(nodes: list[_Entry], gone: Sequence[_Entry]) -> int:
    """Takes those of ``gone`` out that are there, mostly the first ones; how many devices that are."""
    pairs = enumerate(zip(nodes, gone, strict=False))
    num_first = next((index for index, (one, other) in pairs if one != other), min(len(nodes), len(gone)))
    del nodes[:num_first]
    num_devices = -sum(free for free, _ in gone[:num_first])
    for entry in gone[num_first:]:
        index = bisect_left(nodes, entry)
        if nodes[index : index + 1] == [entry]:
            del nodes[index]
            num_devices -= entry[0]
    return num_devices


def _fewest(nodes: Sequence[_Entry], num_workers: int) -> list[_Taken]:
    """The largest nodes, and for what is left at the end the node that it fills best."""
    taken: list[_Taken] = []
    left = num_workers
    for entry in nodes:
        if left <= -entry[0]:
            break
        taken.append((entry, -entry[0]))
        left += entry[0]
    if left:
        best = nodes[bisect_right(nodes, (-left, "\U0010ffff")) - 1][0]
        taken.append((nodes[max(len(taken), bisect_left(nodes, (best, "")))], left))
    return taken


def _evenly(nodes: Sequence[_Entry], num_workers: int) -> list[_Taken]:
    """Those with the least room first get what they can hold of an even share; the others get the rest."""
    taken: list[_Taken] = []
    left = num_workers
    used = nodes[:num_workers]
    for index in range(len(used) - 1, -1, -1):
        share = min(-used[index][0], left // (index + 1))
        taken.append((used[index], share))
        left -= share
    return taken[::-1]
