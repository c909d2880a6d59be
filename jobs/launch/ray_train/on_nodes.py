"""Calls a function on another node of the cluster, such as one that reads what a worker left there."""

from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_TIMEOUT_S = 15.0
Answer = TypeVar("Answer")


def on_node(
    node_id: str, ask: Callable[..., Answer], *about: Any, timeout_s: float = _TIMEOUT_S
) -> Answer | None:
    """What ``ask`` answers on that node; None if the node does not answer. On this node it is called without
    Ray.
    """
    if node_id == ray.get_runtime_context().get_node_id():
        return ask(*about)
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(ask)
    try:
        answer: Answer = ray.get(task.remote(*about), timeout=timeout_s)
    except RayError:
        return None
    return answer
