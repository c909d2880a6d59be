"""Workers that have loaded everything before they are needed: Train's next group takes those on its nodes.

A spare holds no device, no resource of its node and no part of a model, only a process with its libraries,
which takes a worker seconds to start and load. Whoever is not there, or not in time, is started as always.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.inventory import WorkerGroup as Group
from cluster.live import nodes_with_room
from jobs.claims import Claim
from jobs.training.job import Strategy
from jobs.training.worker import load

# A spare that is still loading is worth waiting for: a new worker would begin with it only now.
_PATIENCE_S = 10.0
_LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``num_per_node`` on each of ``node_ids``, each as a worker that gets ``resources``."""

    node_ids: tuple[str, ...]
    num_per_node: int
    resources: Mapping[str, float]
    environment: Mapping[str, str]
    strategy: Strategy


def wanted_beside(
    claim: Claim, group: Group, node_ids: Sequence[str], environment: Mapping[str, str], strategy: Strategy
) -> Wanted | None:
    """For an attempt on ``node_ids``: there, and on as many others that have room for its workers now.

    None where a worker has a device: which one, Ray tells only to who asked for it.
    """
    if "GPU" in claim.resources:
        return None
    used = Counter(node_ids)
    num_per_node = max(used.values())
    needed = {name: num_per_node * amount for name, amount in claim.resources.items()}
    others = [node_id for node_id in nodes_with_room(group, needed) if node_id not in used]
    return Wanted(
        node_ids=(*used, *others[: len(used)]),
        num_per_node=num_per_node,
        resources=claim.resources,
        environment=environment,
        strategy=strategy,
    )


class Spare(RayTrainWorker):  # type: ignore[misc]  # ray's types are skipped
    """Train's own worker, under another name as long as it waits."""

    def begin(self) -> Any:
        """What Train asks a new worker first."""
        self.__class__ = RayTrainWorker
        return self.get_metadata()


class Spares:
    """Starts them at once, and does not wait; they end with the process that started them."""

    def __init__(self, wanted: Wanted) -> None:
        environment = {**get_env_vars_to_propagate(), **wanted.environment}
        self._resources = dict(wanted.resources)
        self._actors: dict[str, list[Any]] = {}
        for node_id in wanted.node_ids:
            there = NodeAffinitySchedulingStrategy(node_id, soft=False)
            make = ray.remote(num_cpus=0, scheduling_strategy=there, runtime_env={"env_vars": environment})(
                Spare
            )
            self._actors[node_id] = [make.remote() for _ in range(wanted.num_per_node)]
            for actor in self._actors[node_id]:
                actor.execute.remote(_load_aside, wanted.strategy)

    def take(self, node_ids: Sequence[str], resources: Mapping[str, float]) -> list[tuple[Any, Any] | None]:
        """For each place of a group a spare on its node, and what it says of itself. The others end.

        A worker with other resources takes another number of threads: that is none of these.
        """
        fitting = self._actors if dict(resources) == self._resources else {}
        taken = [found.pop() if (found := fitting.get(node_id)) else None for node_id in node_ids]
        for actor in (actor for left in self._actors.values() for actor in left):
            ray.kill(actor)
        self._actors = {}
        answers = [actor.begin.remote() if actor else None for actor in taken]
        deadline = time.monotonic() + _PATIENCE_S
        return [_answered(actor, answer, deadline) for actor, answer in zip(taken, answers, strict=True)]


def _load_aside(strategy: Strategy) -> None:
    """Runs in a spare. Whoever trains on its node comes first."""

    def load_at_low_priority() -> None:
        # Linux counts it by thread; a process that has lowered its own can't raise it again.
        os.nice(_LOWEST_PRIORITY)
        load(strategy)

    thread = Thread(target=load_at_low_priority)
    thread.start()
    thread.join()


def _answered(actor: Any, answer: Any, deadline: float) -> tuple[Any, Any] | None:
    if actor is None:
        return None
    try:
        return actor, ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
    except RayError:
        ray.kill(actor)
        return None


def group_with(spares: Spares) -> type[WorkerGroup]:
    """Train's worker group, which takes what there is of ``spares``."""

    class WithSpares(WorkerGroup):  # type: ignore[misc]  # as above
        def _create_workers(
            self, num_workers: int, placement_group: Any, resources_per_worker: dict[str, float], **_: Any
        ) -> list[Worker]:
            nodes = placement_group_table(placement_group)["bundles_to_node_id"]
            found = spares.take([nodes[place] for place in range(num_workers)], resources_per_worker)
            workers = [
                Worker(one[0], one[1], resources_per_worker, placement_group_bundle_index=place)
                for place, one in enumerate(found)
                if one
            ]
            if missing := [place for place, one in enumerate(found) if one is None]:
                workers += super()._create_workers(
                    num_workers, placement_group, resources_per_worker, placement_group_bundle_indices=missing
                )
            return list(WorkerGroup._assign_worker_ranks(workers))

    return WithSpares
