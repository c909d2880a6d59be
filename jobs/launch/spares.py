"""Workers that have loaded everything before they are needed: Train's next group takes those on its nodes.

A spare holds no device, no resource of its node and no part of a model, only a process with its libraries,
which takes a worker seconds to start and load. Whoever is not there, or not in time, is started as always.
The driver owns them and lends all of them to each attempt; those that are not taken wait on.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
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
class Kind:
    """What a spare is made for: another worker's resources make another number of threads, for one."""

    resources: Mapping[str, float]
    environment: Mapping[str, str]
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``num_per_node`` on each of ``node_ids``."""

    node_ids: tuple[str, ...]
    num_per_node: int
    kind: Kind


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
        kind=Kind(resources=claim.resources, environment=environment, strategy=strategy),
    )


class Spare(RayTrainWorker):  # type: ignore[misc]  # ray's types are skipped
    """Train's own worker, under another name as long as it waits."""

    def begin(self) -> Any:
        """What Train asks a new worker first."""
        self.__class__ = RayTrainWorker
        return self.get_metadata()


# Handles of spares by node. Both sides take from the end of a node's, so each knows which are gone.
Waiting = dict[str, list[Any]]


class Spares:
    """Those that a driver owns: some wait, and some are lent, as workers maybe. It waits for none of them."""

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._waiting: Waiting = {}
        self._lent: Waiting = {}

    def keep(self, wanted: Wanted) -> None:
        """Starts who is missing, and ends who is not wanted any more."""
        fitting = self._waiting if wanted.kind == self._kind else {}
        kept = {node_id: fitting.get(node_id, [])[: wanted.num_per_node] for node_id in wanted.node_ids}
        staying = set(_all(kept))
        _end(actor for actor in _all(self._waiting) if actor not in staying)
        for node_id, actors in kept.items():
            actors += [_start(wanted.kind, node_id) for _ in range(wanted.num_per_node - len(actors))]
        self._kind, self._waiting = wanted.kind, kept

    def lend(self) -> "Lent | None":
        """To the controller of an attempt."""
        self._lent, self._waiting = self._waiting, {}
        copy = {node_id: actors.copy() for node_id, actors in self._lent.items()}
        return Lent(self._kind.resources, copy) if self._kind else None

    def take_back(self, node_ids: Sequence[str]) -> None:
        """All but those that a group with workers on ``node_ids`` has tried."""
        tried = _taken(self._lent, node_ids)
        self._waiting, self._lent = self._lent, {}
        for node_id, actor in zip(node_ids, tried, strict=True):
            if actor is not None:
                self._lent.setdefault(node_id, []).append(actor)

    def end_lent(self) -> None:
        """With the attempt; all of them, where it never said where its workers are."""
        _end(_all(self._lent))
        self._lent = {}

    def clear(self) -> None:
        self.end_lent()
        _end(_all(self._waiting))
        self._waiting = {}


class Lent:
    """In the controller."""

    def __init__(self, resources: Mapping[str, float], waiting: Waiting) -> None:
        self._resources = dict(resources)
        self._waiting = waiting

    def take(self, node_ids: Sequence[str], resources: Mapping[str, float]) -> list[tuple[Any, Any] | None]:
        """For each place of a group a spare on its node, and what it says of itself."""
        taken = _taken(self._waiting if dict(resources) == self._resources else {}, node_ids)
        answers = [actor.begin.remote() if actor else None for actor in taken]
        deadline = time.monotonic() + _PATIENCE_S
        return [_answered(actor, answer, deadline) for actor, answer in zip(taken, answers, strict=True)]


def _taken(waiting: Waiting, node_ids: Sequence[str]) -> list[Any | None]:
    return [found.pop() if (found := waiting.get(node_id)) else None for node_id in node_ids]


def _all(waiting: Waiting) -> Iterator[Any]:
    return chain.from_iterable(waiting.values())


def _start(kind: Kind, node_id: str) -> Any:
    environment = {**get_env_vars_to_propagate(), **kind.environment}
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    make = ray.remote(num_cpus=0, scheduling_strategy=there, runtime_env={"env_vars": environment})(Spare)
    actor = make.remote()
    actor.execute.remote(_load_aside, kind.strategy)
    return actor


def _end(actors: Iterable[Any]) -> None:
    for actor in actors:
        # The driver's connection itself may be lost.
        with suppress(RayError):
            ray.kill(actor)


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


def group_with(lent: Lent) -> type[WorkerGroup]:
    """Train's worker group, which takes what there is of ``lent``."""

    class WithSpares(WorkerGroup):  # type: ignore[misc]  # as above
        def _create_workers(
            self, num_workers: int, placement_group: Any, resources_per_worker: dict[str, float], **_: Any
        ) -> list[Worker]:
            nodes = placement_group_table(placement_group)["bundles_to_node_id"]
            found = lent.take([nodes[place] for place in range(num_workers)], resources_per_worker)
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
