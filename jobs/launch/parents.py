"""A driver's ``parent`` processes: one on each node that its next attempt may use, and on its own.

An attempt's processes are forked from them: they hold no device, no resource of their node and no part of a
model, only libraries, whose pages their children share. Where none answers, a process starts as always.
"""

import shlex
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.inventory import WorkerGroup
from cluster.live import nodes_with_room
from jobs.claims import Claim
from jobs.launch.guard import Guard
from jobs.training.job import Strategy

# Of a job's environment: with these Ray starts workers in a way of their own.
_OTHER_WAYS = ("py_executable", "pip", "uv", "conda", "image_uri", "container", "nsight", "rocprof_sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is loaded: a worker's resources decide how many threads its libraries take, for one."""

    resources: Mapping[str, float]
    environment: Mapping[str, str]
    strategy: Strategy


def nodes_beside(claim: Claim, group: WorkerGroup, node_ids: Sequence[str]) -> tuple[str, ...]:
    """Where an attempt on ``node_ids`` may go on: there, and on as many others that have room now."""
    used = tuple(dict.fromkeys(node_ids))
    most = max(node_ids.count(node_id) for node_id in used)
    needed = {name: most * amount for name, amount in claim.resources.items()}
    others = [node_id for node_id in nodes_with_room(group, needed) if node_id not in used]
    return (*used, *others[: len(used)])


class Parents:
    """It waits for none of them."""

    def __init__(self) -> None:
        self._key = ""
        self._kind: Kind | None = None
        self._guards: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}

    def keep(self, kind: Kind, threads: str, node_ids: Sequence[str]) -> None:
        """Starts who is missing; ``threads`` is what workers of that kind were told of their number."""
        if kind != self._kind:
            self.clear()
            self._kind, self._key = kind, uuid.uuid4().hex[:8]
        self._drop_dead()
        here = ray.get_runtime_context().get_node_id()
        told = {"OMP_NUM_THREADS": threads} if threads else {}
        environment = {**get_env_vars_to_propagate(), **told, **kind.environment}
        for node_id in {here, *node_ids} - self._guards.keys():
            # A controller needs less than a worker.
            load = (kind.strategy,) if node_id in node_ids else ()
            self._guards[node_id] = _start(node_id, environment, self._key, load)
        self._answers = {node_id: guard.executable.remote() for node_id, guard in self._guards.items()}

    def executable(self, kind: Kind) -> str | None:
        """What Ray is to start instead of Python; None: Python."""
        if kind != self._kind:
            return None
        self._drop_dead()
        ready, _ = ray.wait(list(self._answers.values()), num_returns=len(self._answers), timeout=0)
        found = set(ray.get(ready))
        # One path is for all nodes.
        return f"{shlex.quote(found.pop())} -m jobs.launch.child {self._key}" if len(found) == 1 else None

    def clear(self) -> None:
        """Whatever they are forked into goes on."""
        for guard in self._guards.values():
            with suppress(RayError):
                ray.kill(guard)
        self._guards, self._answers, self._kind = {}, {}, None

    def _drop_dead(self) -> None:
        for node_id, answer in tuple(self._answers.items()):
            if ray.wait([answer], timeout=0)[0]:
                try:
                    ray.get(answer)
                except RayError:
                    del self._answers[node_id], self._guards[node_id]


def is_possible() -> bool:
    """Whether Ray starts the workers of this driver's job as it usually does."""
    environment = ray.get_runtime_context().runtime_env
    return not any(environment.get(name) for name in _OTHER_WAYS)


def _start(node_id: str, environment: Mapping[str, str], key: str, load: tuple[Strategy, ...]) -> Any:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    settings = {"env_vars": dict(environment)}
    return ray.remote(num_cpus=0, scheduling_strategy=there, runtime_env=settings)(Guard).remote(key, load)
