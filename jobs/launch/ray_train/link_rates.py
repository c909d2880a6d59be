"""Tries the links between hosts of a running attempt, beside it: its ranks take no part and wait for nobody.

On each host a process of its own sends to another host, and takes from a third one, all at once; a few times,
with others each time. That is plain TCP between the addresses where Ray's nodes are.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.launch.ray_train.link_end import TOKEN_BYTES, LinkEnd

# Processes start, and bytes are sent for a second.
_DEADLINE_S = 60.0
_NUM_TRIES = 4
_LOOK_UP_S = 0.2

# From a node to another one, by their places in the list, in bytes/s.
Rate = tuple[int, int, float]


class _NotInTime(Exception):
    pass


def link_rates(node_ids: Sequence[str], is_wanted: Callable[[], bool]) -> list[Rate] | None:
    """What each of the nodes, which are at least two, sends to some of the others. None if not all of them
    take part in time, if some are on one machine, or soon after this ``is_wanted`` no more.
    """
    by_id = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    addresses = [by_id[one] for one in node_ids if one in by_id]
    if len({*addresses}) < len(node_ids):
        return None
    token, ends = secrets.token_bytes(TOKEN_BYTES), list[Any]()
    try:
        for node_id, address in zip(node_ids, addresses, strict=True):
            ends.append(_start(node_id, address, addresses, token))
        return _try_all(ends, addresses, partial(_told, time.monotonic() + _DEADLINE_S, is_wanted))
    except (RayError, _NotInTime):
        return None
    finally:
        # Without this question Ray would start itself again for a driver that is done with it.
        if ray.is_initialized():
            for end in ends:
                ray.kill(end)


def _start(node_id: str, address: str, others: Sequence[str], token: bytes) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=0)(LinkEnd)
    return actor.options(scheduling_strategy=there).remote(address, others, token)


def _try_all(
    ends: Sequence[Any], addresses: Sequence[str], told: Callable[[Sequence[Any]], list[Any]]
) -> list[Rate]:
    count = len(ends)
    places = list(zip(addresses, told([end.port.remote() for end in ends]), strict=True))
    for turn in range(_NUM_TRIES):
        away = 1 + turn % (count - 1)
        told([end.send.remote(places[(one + away) % count], one) for one, end in enumerate(ends)])
    received = told([end.received.remote() for end in ends])
    return [(one, other, rate) for other, rates in enumerate(received) for one, rate in rates.items()]


def _told(end_s: float, is_wanted: Callable[[], bool], questions: Sequence[Any]) -> list[Any]:
    left = [*questions]
    while left:
        if not is_wanted() or time.monotonic() > end_s:
            raise _NotInTime
        _, left = ray.wait(left, num_returns=len(left), timeout=_LOOK_UP_S)
    return list(ray.get([*questions]))
