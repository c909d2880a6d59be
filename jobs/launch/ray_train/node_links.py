"""Which nodes of a worker group reach each other, asked of the nodes once its ranks stand still.

Each tries to connect to where Ray listens on the others. Says nothing of a node that does not answer in time,
also where others do not reach it, nor of a port that is closed to ranks alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from cluster.probe.broken_ways import unreached, ways_between
from jobs.execution.monitor import BrokenWay
from jobs.launch.ray_train.on_nodes import on_each_node

# A question to each node, and on each as many connections.
_MOST_NODES = 64
_ANSWER_S = 20.0


def broken_ways(node_ids: Sequence[str]) -> list[BrokenWay]:
    """``node_ids`` are each once. Asks at most the first 64."""
    return _broken(*_ask(node_ids))


def all_broken_ways(node_ids: Sequence[str]) -> list[BrokenWay] | None:
    """None unless each of the nodes answers."""
    known, answered = _ask(node_ids)
    return _broken(known, answered) if len(answered) == len(node_ids) else None


def _ask(node_ids: Sequence[str]) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """The nodes, and which of them each that answers does not reach, by their numbers."""
    try:
        by_id = {node["NodeID"]: node for node in ray.nodes()}
    except RayError:  # The head is away.
        return [], {}
    known = [by_id[one] for one in node_ids if one in by_id][:_MOST_NODES]
    places = [(node["NodeManagerAddress"], int(node["NodeManagerPort"])) for node in known]
    told = on_each_node([node["NodeID"] for node in known], unreached, places, timeout_s=_ANSWER_S)
    return known, {
        number: told[node["NodeID"]] for number, node in enumerate(known) if node["NodeID"] in told
    }


def _broken(known: Sequence[Mapping[str, Any]], answered: Mapping[int, Sequence[int]]) -> list[BrokenWay]:
    return [
        BrokenWay(
            node_id=known[one]["NodeID"],
            host=known[one]["NodeManagerHostname"],
            other_id=known[other]["NodeID"],
            other_host=known[other]["NodeManagerHostname"],
        )
        for one, other in ways_between(answered)
    ]
