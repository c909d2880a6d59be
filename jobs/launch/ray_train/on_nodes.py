"""Calls a function on other nodes of the cluster, such as one that reads what a worker left there."""

from collections.abc import Callable, Sequence
from contextlib import suppress
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
    return on_each_node([node_id], ask, *about, timeout_s=timeout_s).get(node_id)


def on_each_node(
    node_ids: Sequence[str], ask: Callable[..., Answer], *about: Any, timeout_s: float = _TIMEOUT_S
) -> dict[str, Answer]:
    """What ``ask`` answers on these nodes, all at once; without the nodes that do not answer in time."""
    answers: dict[str, Answer] = {}
    with suppress(RayError):  # Of the questions themselves, as where the head is away.
        tasks = {_task(node_id, ask).remote(*about): node_id for node_id in node_ids}
        in_time, late = ray.wait([*tasks], num_returns=len(tasks), timeout=timeout_s) if tasks else ([], [])
        for task in in_time:
            with suppress(RayError):
                answers[tasks[task]] = ray.get(task, timeout=timeout_s)
        for task in late:
            ray.cancel(task, force=True)
    return answers


def _task(node_id: str, ask: Callable[..., Answer]) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(ask)
