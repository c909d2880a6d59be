"""Every node that a running cluster knows of, including lost ones, without becoming a driver of that
cluster.

The query costs one connection to the head: it registers no job and starts no worker.
"""

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cluster.inventory import GROUP_LABEL, LOCAL_GROUP, SIMULATED_LABEL, ClusterError
from cluster.ray_internals import head_address, tables_of

_CONNECT_TIMEOUT_S = 5.0

NodeState = Literal["alive", "draining", "drained", "lost"]
# Ray's death reasons for a node that was told to drain: for a preemption, and because it was idle.
_DRAINED = frozenset({3, 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as the head knows it. ``name`` is what the node was started with, else its address.

    A node that comes back keeps its name but has another ``node_id``. ``times_lost`` counts how often
    it ended without a drain, as far as the head remembers.
    """

    name: str
    node_id: str
    group: str
    state: NodeState
    is_simulated: bool
    num_cpus: int
    num_gpus: int
    times_lost: int = 0
    why_gone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at one moment: Ray's own table, for ``cluster.live``, and the resulting list of nodes."""

    address: str
    table: tuple[dict[str, Any], ...]
    draining: frozenset[str]

    @property
    def nodes(self) -> list[SeenNode]:
        return seen_nodes(self.table, self.draining)


def query_cluster(address: str) -> ClusterView:
    """Queries the cluster; raises ``ClusterError`` after some seconds if none answers there."""
    try:
        head = head_address(address)
        _check_listening(head)
        table, draining = tables_of(head)
    except Exception as error:
        # Ray's layers raise errors of many types; all of them mean that the head is away.
        raise ClusterError(f"{address}: no Ray cluster answers there ({_first_line(error)})") from None
    return ClusterView(address=address, table=table, draining=draining)


def seen_nodes(table: Iterable[dict[str, Any]], draining: Collection[str]) -> list[SeenNode]:
    """Returns, by group and name, every living node, and every lost name that did not come back."""
    entries = list(table)
    alive = [entry for entry in entries if entry["Alive"]]
    dead = [entry for entry in entries if not entry["Alive"]]
    lost = Counter(_key(entry) for entry in dead if not _was_drained(entry))
    back = {_key(entry) for entry in alive}
    # Ray's table has no order.
    by_start = sorted(dead, key=lambda entry: int(entry.get("StartTimeMs", 0)))
    last = {_key(entry): entry for entry in by_start if _key(entry) not in back}
    found = [_node(entry, "draining" if entry["NodeID"] in draining else "alive", lost) for entry in alive]
    found += [_node(entry, "drained" if _was_drained(entry) else "lost", lost) for entry in last.values()]
    return sorted(found, key=lambda node: (node.group, node.name, node.node_id))


def _was_drained(entry: Mapping[str, Any]) -> bool:
    return entry.get("DeathReason") in _DRAINED


def _node(entry: Mapping[str, Any], state: NodeState, lost: Mapping[tuple[str, str], int]) -> SeenNode:
    resources = entry["Resources"]
    return SeenNode(
        name=entry["NodeName"],
        node_id=entry["NodeID"],
        group=_group(entry),
        state=state,
        is_simulated=entry["Labels"].get(SIMULATED_LABEL) == "true",
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        times_lost=lost.get(_key(entry), 0),
        why_gone=entry.get("DeathReasonMessage") or None,
    )


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return _group(entry), entry["NodeName"]


def _group(entry: Mapping[str, Any]) -> str:
    return str(entry["Labels"].get(GROUP_LABEL, LOCAL_GROUP))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _check_listening(address: str) -> None:
    """Tests the connection first. Ray itself would try for a minute in its C++ core and then end this
    process.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
