"""Workers that Ray starts ahead: the next attempt's controller and ranks find them on their nodes.

Ray gives an actor a worker that waits, if both have the same environment, to the letter. Such a worker has no
resource, runs nothing, and ends with the driver's job. It is forked like any other where a forkserver
answers.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_internals import start_idle_worker, workers_at
from jobs.launch.forkserver.rehearsal import Rehearsal

# Ray Train's controller starts one more actor of its own environment, for its barriers.
_CONTROLLERS = 2
# A busy machine may need all of it.
_STARTING_S = 60.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Environments:
    """What Ray is told about the processes of one attempt."""

    controller: Mapping[str, Any]
    workers: Mapping[str, Any]


class WorkersAhead:
    """The workers that wait for one driver's next attempt. No method waits for Ray.

    If one is lost, or fits no more, Ray starts another when it is needed.
    """

    def __init__(self) -> None:
        self._for: Environments | None = None
        # Their environments as Ray writes them, and who is asked for these.
        self._texts: tuple[str, str] | None = None
        self._asked: tuple[Any, Any] | None = None
        self._controllers = 0
        self._workers: Counter[str] = Counter()
        self._are_used = False

    def keep(self, environments: Environments, workers: Mapping[str, int]) -> bool:
        """Starts those that are missing: so many ``workers`` on each node, and what a controller needs here.

        Returns whether that is all; if not, it must be called again.
        """
        if environments != self._for:
            self.clear()
            self._for = environments
        if self._texts is None and not self._has_answer(environments):
            return False
        if self._texts is not None:
            self._start(self._texts, Counter(workers) - self._workers)
        return True

    def begins(self, environments: Environments) -> None:
        """An attempt's controller is about to be started."""
        self._are_used = environments == self._for
        self._takes(1, ())

    def assembled(self, node_ids: Sequence[str]) -> None:
        """That attempt's workers are up."""
        self._takes(1, node_ids)

    def clear(self) -> None:
        """Ends those that wait."""
        if self._asked is not None:
            _kill(self._asked[0])
        if self._for is not None and (self._controllers or self._workers):
            with suppress(RayError):
                rehearsal = _rehearsal(self._for)
                # It is one of the controllers itself.
                rehearsal.use_up.remote(max(0, self._controllers - 1), dict(self._workers))
        self._for = self._texts = self._asked = None
        self._controllers, self._workers, self._are_used = 0, Counter(), False

    def _takes(self, controllers: int, node_ids: Sequence[str]) -> None:
        if self._are_used:
            self._controllers = max(0, self._controllers - controllers)
            self._workers -= Counter(node_ids)

    def _has_answer(self, environments: Environments) -> bool:
        if self._asked is None:
            rehearsal = _rehearsal(environments)
            self._asked = rehearsal, rehearsal.texts.remote()
        rehearsal, answer = self._asked
        if not ray.wait([answer], timeout=0)[0]:
            return False
        self._asked = None
        # Without an answer the next attempt begins as usual.
        with suppress(RayError):
            self._texts = ray.get(answer)
        _kill(rehearsal)
        return True

    def _start(self, texts: tuple[str, str], workers: Counter[str]) -> None:
        context = ray.get_runtime_context()
        controller, worker = texts
        missing = [(context.get_node_id(), controller, _CONTROLLERS - self._controllers)]
        missing += [(node_id, worker, number) for node_id, number in workers.items()]
        raylets = {
            node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            for node in ray.nodes()
            if node["Alive"]
        }
        asked = [(raylets[node], text, number) for node, text, number in missing if node in raylets]
        Thread(target=_ask, args=(context.get_job_id(), asked), name="workers ahead", daemon=True).start()
        self._controllers = _CONTROLLERS
        self._workers += workers


def _ask(job_id: str, asked: Sequence[tuple[str, str, int]]) -> None:
    """For one worker after another on each node: a raylet that is asked for one while another of the same
    environment is starting takes that one for both.
    """
    for num_before in range(max(number for *_, number in asked)):
        before: dict[str, frozenset[int]] = {}
        for raylet, text, number in asked:
            if number > num_before:
                before.setdefault(raylet, workers_at(raylet))
                start_idle_worker(raylet, job_id, text)
        deadline_s = time.monotonic() + _STARTING_S
        for raylet, known in before.items():
            while workers_at(raylet) <= known and time.monotonic() < deadline_s:
                time.sleep(_LOOK_EVERY_S)


def _rehearsal(environments: Environments) -> Any:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    settings = {"num_cpus": 0, "scheduling_strategy": here, "runtime_env": dict(environments.controller)}
    return ray.remote(**settings)(Rehearsal).remote(environments.workers)


def _kill(actor: Any) -> None:
    with suppress(RayError):
        ray.kill(actor)
