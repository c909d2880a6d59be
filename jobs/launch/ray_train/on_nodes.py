"""Calls a function on other nodes of the cluster, such as one that reads what a worker left there."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_TIMEOUT_S = 15.0
_LOOK_EVERY_S = 0.5
Answer = TypeVar("Answer")


def on_node(
    node_id: str, ask: Callable[..., Answer], *about: Any, timeout_s: float = _TIMEOUT_S
) -> Answer | None:
    """What ``ask`` answers on that node; None if the node does not answer. On this node it is called without
    Ray.
    """
    if node_id == ray.get_runtime_context().get_node_id():
        return ask(*about)
    return on_each_node([node_id], ask, *about, timeout_s=timeout_s).get(node_id)


def on_each_node(
    node_ids: Sequence[str], ask: Callable[..., Answer], *about: Any, timeout_s: float = _TIMEOUT_S
) -> dict[str, Answer]:
    """What ``ask`` answers on these nodes, all at once; without the nodes that do not answer in time.

    Of a node that is gone no answer is waited for. Ray itself would wait, if it was asked before it knew.
    """
    answers: dict[str, Answer] = {}
    with suppress(RayError):  # Of the questions themselves, as where the head is away.
        tasks = {_task(node_id, ask).remote(*about): node_id for node_id in node_ids}
        in_time, late = _answered(tasks, time.monotonic() + timeout_s)
        for task in in_time:
            with suppress(RayError):
                answers[tasks[task]] = ray.get(task, timeout=timeout_s)
        for task in late:
            ray.cancel(task, force=True)
    return answers


def _answered(tasks: Mapping[Any, str], deadline_s: float) -> tuple[list[Any], list[Any]]:
    """The tasks that have ended, and those that still go on then."""
    late = [*tasks]
    while late and time.monotonic() < deadline_s:
        _, late = ray.wait(late, num_returns=len(late), timeout=_LOOK_EVERY_S)
        there = {node["NodeID"] for node in ray.nodes() if node["Alive"]} if late else ()
        if all(tasks[task] not in there for task in late):
            break
    return [task for task in tasks if task not in late], late


def _task(node_id: str, ask: Callable[..., Answer]) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(ask)
