"""Connects to a cluster and keeps one node actor per node. Every answer has a deadline."""

import os
import re
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.inventory import Inventory, WorkerGroup
from cluster.local_ray.private_ray import ray_for_driver
from cluster.ray_internals import free_resources
from jobs.doctor.examination import Asked, Unusable
from jobs.doctor.node_actor import NodeActor

_KNOCK_DEADLINE_S = 5.0
_MOST_CHARS = 400
_HOST_AND_PORT = re.compile(r"([^:/]+):(\d{1,5})")

# An actor that claims no device would otherwise see none.
_SEES_ALL = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
}


@dataclass(slots=True, kw_only=True)
class NodeSession:
    """A node being asked. ``machine`` is its address, which several nodes on one machine share."""

    asked: Asked
    group: WorkerGroup
    machine: str
    node_actor: Any


def connect(stack: ExitStack) -> None:
    """Connects to the cluster at ``RAY_ADDRESS``, or raises ``Unusable``.

    Ray raises errors of many types if nothing listens or if versions differ.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _knock(address)
        stack.enter_context(ray_for_driver())
    except (OSError, RuntimeError, ValueError) as error:
        raise Unusable(
            f"RAY_ADDRESS={address}: {words(error)}; start the cluster, correct the address, or unset it to "
            "look at this machine alone"
        ) from error


def _knock(address: str) -> None:
    """Fails within seconds if nothing listens at ``address``, where Ray would retry for a long time."""
    if found := _HOST_AND_PORT.fullmatch(address):
        with socket.create_connection((found[1], int(found[2])), timeout=_KNOCK_DEADLINE_S):
            pass


def visits_of(inventory: Inventory) -> list[NodeSession]:
    machines = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    in_use = _in_use()
    return [
        NodeSession(
            asked=Asked(
                node_id=node.node_id,
                name=node.short_name,
                group=group.name,
                vendor=group.vendor,
                promised_devices=node.num_devices,
                simulated=group.simulated,
                in_use=in_use.get(node.node_id),
            ),
            group=group,
            machine=machines.get(node.node_id, node.node_id),
            node_actor=start_node_actor(node.node_id),
        )
        for group in inventory.groups
        for node in group.nodes
    ]


def _in_use() -> dict[str, str]:
    """The CPUs and GPUs that others use on each node, in words, by node id. Free nodes are left out."""
    free = free_resources()
    found = {}
    for node in (node for node in ray.nodes() if node["Alive"]):
        left = free.get(node["NodeID"], {})
        taken = {
            name: total - left.get(name, 0.0)
            for name in ("CPU", "GPU")
            if (total := node["Resources"].get(name, 0.0))
        }
        if amounts := [f"{count:g} {name}" for name, count in taken.items() if count > 0]:
            found[node["NodeID"]] = " and ".join(amounts)
    return found


def start_node_actor(node_id: str) -> Any:
    """Starts a node actor that ends with this driver. It claims no device and no core, so it never waits."""
    actor = ray.remote(num_cpus=0, max_restarts=0)(NodeActor)
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return actor.options(scheduling_strategy=there, runtime_env={"env_vars": _SEES_ALL}).remote()


def renew(visit: NodeSession) -> None:
    """Puts a new node actor in the place of one that may be stuck in a collective."""
    ray.kill(visit.node_actor)
    visit.node_actor = start_node_actor(visit.asked.node_id)


def answer_to(ref: Any, end: float, kind: type) -> Any:
    """The answer, or the reason in words why there is none by the time ``end``."""
    try:
        found = ray.get(ref, timeout=max(0.0, end - time.monotonic()))
    except GetTimeoutError:
        return "no answer in time"
    except RayError as error:
        return _first_line(error)
    return found if isinstance(found, kind) else f"answered {found!r:.60}"


def words(error: BaseException) -> str:
    """The error's whole message as one line, cut to ``_MOST_CHARS``."""
    return " ".join(str(error).split())[:_MOST_CHARS] or type(error).__name__


def _first_line(error: BaseException) -> str:
    """The type and first line of the error. Ray wraps a task's exception; then its cause is used."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"
