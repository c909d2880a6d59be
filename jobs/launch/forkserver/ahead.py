"""Workers that Ray starts ahead: the next attempt's controller and ranks find them on their nodes.

Ray gives an actor a worker that waits, if both have the same environment, to the letter. Such a worker has no
resource, runs nothing, and ends with the driver's job. It is forked like any other where a forkserver
answers.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from threading import Event, Thread
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_internals import start_idle_worker, workers_at
from jobs.launch.forkserver.rehearsal import Rehearsal, idle_ones

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
        self._waiting: _Waiting | None = None
        # Who is asked for the environments as Ray writes them.
        self._asked: tuple[Any, Any] | None = None

    def keep(
        self, environments: Environments, workers: Mapping[str, int], ranks: Mapping[str, Collection[int]]
    ) -> bool:
        """Starts those that are missing: so many ``workers`` on each node, and what a controller needs here.
        On other nodes they end. ``ranks`` are the processes of the attempt that goes on, by node.

        Returns whether that is all; if not, it must be called again.
        """
        if environments != self._for:
            self.clear()
            self._for = environments
        if self._waiting is None and not self._has_answer(environments):
            return False
        if self._waiting is not None:
            self._waiting.look_for_raylets()
            if left := self._waiting.nodes() - {*workers, _here()}:
                self._waiting.use_up(_rehearsal(environments), left)
            self._waiting.top_up(workers, ranks)
        return True

    def clear(self) -> None:
        """Ends those that wait."""
        if self._asked is not None:
            _kill(self._asked[0])
        if self._for is not None and self._waiting is not None:
            with suppress(RayError):
                self._waiting.use_up(_rehearsal(self._for), None)
        self._for = self._waiting = self._asked = None

    def pause(self) -> None:
        """Starts no more of them, until they are to be kept again."""
        if self._waiting is not None:
            self._waiting.pause()

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
            self._waiting = _Waiting(*ray.get(answer))
        _kill(rehearsal)
        return True


class _Waiting:
    """Those for attempts of one kind, known by their processes: whoever was not taken is there still.

    Raylets are asked in threads, one after the other.
    """

    def __init__(self, controller: str, worker: str) -> None:
        self._controller, self._worker = controller, worker
        self._job_id: str = ray.get_runtime_context().get_job_id()
        self._here = _here()
        self._raylets: dict[str, str] = {}
        # By node and environment.
        self._pids: dict[tuple[str, str], set[int]] = {}
        self._is_over = Event()
        self._thread: Thread | None = None

    def look_for_raylets(self) -> None:
        self._raylets = {
            node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            for node in ray.nodes()
            if node["Alive"]
        }

    def nodes(self) -> set[str]:
        """Where some may wait."""
        return {node_id for node_id, _ in tuple(self._pids)}

    def top_up(self, workers: Mapping[str, int], ranks: Mapping[str, Collection[int]]) -> None:
        self._then(self._top_up, dict(workers), dict(ranks))

    def use_up(self, rehearsal: Any, nodes: Collection[str] | None) -> None:
        """Ends all on these nodes; on every node if None."""
        self._then(self._use_up, rehearsal, nodes)

    def pause(self) -> None:
        self._is_over.set()

    def _then(self, act: Callable[..., None], *about: Any) -> None:
        self.pause()
        before, self._is_over = self._thread, Event()

        def run(is_over: Event) -> None:
            if before is not None:
                before.join()
            act(*about, is_over)

        self._thread = Thread(target=run, args=(self._is_over,), name="workers ahead", daemon=True)
        self._thread.start()

    def _top_up(
        self, workers: Mapping[str, int], ranks: Mapping[str, Collection[int]], is_over: Event
    ) -> None:
        """One worker after another on each node: a raylet that is asked for one while another of the same
        environment is starting takes that one for both.
        """
        missing: dict[str, list[str]] = {}
        for node_id in (self._here, *(node_id for node_id in workers if node_id != self._here)):
            up = self._up(node_id)
            if not up:
                continue
            waiting = {*self._kept(node_id, self._worker, up)} - {*ranks.get(node_id, ())}
            missing[node_id] = [self._worker] * (workers.get(node_id, 0) - len(waiting))
            if node_id == self._here:
                controllers = self._kept(node_id, self._controller, up)
                controllers &= {*idle_ones(controllers)}
                missing[node_id] = [self._controller] * (_CONTROLLERS - len(controllers)) + missing[node_id]
        for turn in zip_longest(*missing.values()):
            if is_over.is_set():
                return
            self._start({node_id: text for node_id, text in zip(missing, turn, strict=True) if text})

    def _start(self, texts: Mapping[str, str]) -> None:
        """One on each of these nodes. Whatever appears there is taken for it."""
        before = {}
        for node_id, text in texts.items():
            if up := self._up(node_id):
                before[node_id] = up
                start_idle_worker(self._raylets[node_id], self._job_id, text)
        deadline_s = time.monotonic() + _STARTING_S
        for node_id, known in before.items():
            while (up := self._up(node_id)) and up <= known and time.monotonic() < deadline_s:
                time.sleep(_LOOK_EVERY_S)
            self._pids.setdefault((node_id, texts[node_id]), set()).update(up - known)

    def _use_up(self, rehearsal: Any, nodes: Collection[str] | None, _: Event) -> None:
        workers: dict[str, int] = {}
        controllers: list[int] = []
        for node_id, text in tuple(self._pids):
            if nodes is not None and node_id not in nodes:
                continue
            up = self._up(node_id)
            if text == self._worker:
                workers[node_id] = len(self._pids[node_id, text] & up)
            else:
                controllers += self._pids[node_id, text] & up
            del self._pids[node_id, text]
        with suppress(RayError):
            rehearsal.use_up.remote(controllers, workers)

    def _kept(self, node_id: str, text: str, up: frozenset[int]) -> set[int]:
        """Those of them that are up."""
        pids = self._pids.setdefault((node_id, text), set())
        pids &= up
        return pids

    def _up(self, node_id: str) -> frozenset[int]:
        """All workers there; none of a raylet that does not answer, as each has one at least: who keeps
        something there, or a rank.
        """
        raylet = self._raylets.get(node_id)
        return workers_at(raylet) if raylet else frozenset()


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _rehearsal(environments: Environments) -> Any:
    here = NodeAffinitySchedulingStrategy(_here(), soft=False)
    settings = {"num_cpus": 0, "scheduling_strategy": here, "runtime_env": dict(environments.controller)}
    return ray.remote(**settings)(Rehearsal).remote(environments.workers)


def _kill(actor: Any) -> None:
    with suppress(RayError):
        ray.kill(actor)
