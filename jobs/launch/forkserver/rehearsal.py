"""An actor in the place of Ray Train's controller, for what Ray only tells there.

In a file of its own: an actor loads all that its file imports.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_internals import environment_of_workers

_PATIENCE_S = 60.0


class Rehearsal:
    """Start it as the controller is started. ``workers`` is what the trainer tells the controller of the
    workers' environment.
    """

    def __init__(self, workers: Mapping[str, Any]) -> None:
        self._workers = environment_of_workers(workers)
        self._here = ray.get_runtime_context().get_node_id()

    def texts(self) -> tuple[str, str]:
        """The environments of the controller and of a worker, as Ray writes them."""
        worker = _start(self._here, self._workers)
        text = ray.get(worker.text.remote(), timeout=_PATIENCE_S)
        ray.kill(worker)
        return _own_text(), text

    def use_up(self, controllers: Collection[int], workers: Mapping[str, int]) -> None:
        """Ends so many workers on each node, and those of these processes here, that wait for actors of these
        environments; and this actor, which may have been one of them.
        """
        actors = [_start(node_id, self._workers) for node_id, more in workers.items() for _ in range(more)]
        actors += [_start(self._here, None) for _ in idle_ones(controllers)]
        answers = [actor.text.remote() for actor in actors]
        ray.wait(answers, num_returns=len(answers), timeout=_PATIENCE_S)
        for actor in actors:
            with suppress(RayError):
                ray.kill(actor)
        ray.actor.exit_actor()


def idle_ones(pids: Collection[int]) -> list[int]:
    """Those of this node's workers that wait."""
    idle = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "ray::IDLE":
                idle.append(pid)
    return idle


class _Worker:
    def text(self) -> str:
        return _own_text()


def _own_text() -> str:
    return str(ray.get_runtime_context().get_runtime_env_string())


def _start(node_id: str, environment: Mapping[str, Any] | None) -> Any:
    """Without an ``environment`` Ray gives the actor this one's."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    settings = {"runtime_env": dict(environment)} if environment is not None else {}
    return ray.remote(num_cpus=0, scheduling_strategy=there, **settings)(_Worker).remote()
