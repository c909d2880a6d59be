"""What became of the nodes between two views of one running cluster. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cluster.inventory import Inventory, Node
from cluster.promised_vs_live import Finding, counted, draining


def changes(before: Inventory, now: Inventory) -> tuple[Finding, ...]:
    """By group: the nodes that were drained or lost, that returned, that joined, that are draining now.

    A node that is there under a new id and its old name has returned; it is not told as lost as well.
    """
    names = sorted({group.name for view in (before, now) for group in view.groups})
    return tuple(found for name in names for found in _of_group(name, before, now))


def _of_group(group: str, before: Inventory, now: Inventory) -> Iterator[Finding]:
    old, new = _by_id(before, group), _by_id(now, group)
    gone = [node for node_id, node in old.items() if node_id not in new]
    came = [node for node_id, node in new.items() if node_id not in old]
    back = _names(gone) & _names(came)
    returned, joined = _split(came, back)
    yield from (_gone(group, node) for node in _split(gone, back)[1])
    yield from (_came(group, node, is_back=True) for node in returned)
    yield from (_came(group, node, is_back=False) for node in joined)
    for node_id, node in new.items():
        if node.is_draining and not (node_id in old and old[node_id].is_draining):
            yield draining(group, node)


def _by_id(view: Inventory, name: str) -> dict[str, Node]:
    group = view.group(name)
    return {node.node_id: node for node in group.all_nodes} if group else {}


def _names(nodes: Sequence[Node]) -> Counter[str | None]:
    return Counter(node.name for node in nodes if node.name is not None)


def _split(nodes: Sequence[Node], names: Counter[str | None]) -> tuple[list[Node], list[Node]]:
    """Those that ``names`` name, as often as it does, and the others."""
    left = names.copy()
    named: list[Node] = []
    others: list[Node] = []
    for node in nodes:
        (named if left[node.name] > 0 else others).append(node)
        left[node.name] -= 1
    return named, others


def _gone(group: str, node: Node) -> Finding:
    if node.is_draining:
        found, remedy = f"node {node.short_name} was drained and is gone", "It may be serviced now."
        return Finding(kind="drained", level="note", group=group, found=found, remedy=remedy)
    return Finding(
        kind="lost",
        level="warning",
        group=group,
        found=f"node {node.short_name} is lost",
        remedy="Look at its power, its network and what `ray start` wrote there; it comes back by itself if "
        "that is started in a loop.",
    )


def _came(group: str, node: Node, *, is_back: bool) -> Finding:
    return Finding(
        kind="returned" if is_back else "joined",
        level="note",
        group=group,
        found=f"node {node.short_name} is {'back' if is_back else 'new'}, with "
        f"{counted(node.num_devices, 'device')}",
        remedy="Have `longhaul doctor` look at it before anything is timed there.",
    )
