"""Every node that a running cluster knows of, also those that it lost, without becoming a driver of it.

Asking costs one connection to the head: no job is registered, no worker started.
"""

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cluster.inventory import GROUP_LABEL, LOCAL_GROUP, SIMULATED_LABEL, ClusterError
from cluster.ray_internals import head_address, tables_of

_KNOCK_TIMEOUT_S = 5.0

NodeState = Literal["alive", "draining", "drained", "lost"]
# Ray's reasons of death for a node that was told to drain: for a preemption, and because it was idle.
_DRAINED = frozenset({3, 4})
_START = "StartTimeMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """``name`` is what the node was started with, else its address; a node that comes back has it again and
    another ``node_id``. ``times_lost`` counts its lives that ended otherwise than by a drain, as far as the
    head remembers them.
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
    """One moment of a cluster: Ray's own table, for ``cluster.live``, and what it says of every node."""

    address: str
    table: tuple[dict[str, Any], ...]
    draining: frozenset[str]

    @property
    def nodes(self) -> list[SeenNode]:
        return seen(self.table, self.draining)


def look(address: str) -> ClusterView:
    """``ClusterError`` if nobody answers there, after some seconds."""
    try:
        head = head_address(address)
        _knock(head)
        found = tables_of(head)
    except Exception as error:
        # Ray raises what its several layers happen to raise; all of it says that the head is away.
        raise ClusterError(f"{address}: no Ray cluster answers there ({_first_line(error)})") from None
    dated = tuple({**entry, _START: found.started_ms.get(entry["NodeID"], 0)} for entry in found.nodes)
    return ClusterView(address=address, table=dated, draining=found.draining)


def seen(table: Iterable[dict[str, Any]], draining: Collection[str]) -> list[SeenNode]:
    """By group and name, every node that is alive, and every name that is gone and did not come back."""
    entries = list(table)
    alive = [entry for entry in entries if entry["Alive"]]
    dead = [entry for entry in entries if not entry["Alive"]]
    lost = Counter(_key(entry) for entry in dead if not _was_drained(entry))
    back = {_key(entry) for entry in alive}
    # Ray's table is in no order.
    by_start = sorted(dead, key=lambda entry: int(entry.get(_START, 0)))
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


def _knock(address: str) -> None:
    """Ray itself tries for a minute, in the language that it is written in, and ends this process then."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _KNOCK_TIMEOUT_S).close()
