"""A driver's forkservers: one on each node that its next attempt may use, and one on its own node.

An attempt's processes are forked from them. A forkserver holds no device, no resource of its node and no part
of a model. It holds only libraries, whose pages its children share. On a node where none answers, a process
starts as usual. So it does where loading has touched a device: such a forkserver ends by itself.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.environment import is_on_cpus, read_at_start
from cluster.inventory import WorkerGroup
from cluster.live import nodes_with_room
from cluster.ray_internals import propagated_variables
from jobs.execution.resources import Claim
from jobs.launch.forkserver.actor import ForkserverActor
from jobs.training.task.job import Strategy

# If a job's environment has no other fields than these, Ray starts its workers with the Python of their node.
_AS_USUAL = frozenset({"working_dir", "py_modules", "env_vars", "excludes", "config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFor:
    """What a forkserver has loaded for. Resources matter too: they decide how many threads libraries use.

    ``accelerator`` is DeepSpeed's name for the kind of device. DeepSpeed chooses it as it loads, and could
    only find it out by asking for devices.
    """

    resources: Mapping[str, float]
    environment: Mapping[str, str]
    strategy: Strategy
    accelerator: Literal["cpu", "cuda"] = "cpu"

    def variables(self, threads: str) -> dict[str, str]:
        """What the forkserver is started with; it may hold secrets."""
        told = {"OMP_NUM_THREADS": threads} if threads else {}
        return {"DS_ACCELERATOR": self.accelerator, **told, **self.environment}


def kind_for(
    claim: Claim, group: WorkerGroup, environment: Mapping[str, str], strategy: Strategy
) -> LoadedFor | None:
    """The kind to load for; None for jobs whose workers Ray starts in another way."""
    if ray.get_runtime_context().runtime_env.keys() - _AS_USUAL:
        return None
    return LoadedFor(
        resources=claim.resources,
        environment=environment,
        strategy=strategy,
        # HIP's devices are torch's ``cuda`` too.
        accelerator="cpu" if is_on_cpus(group) else "cuda",
    )


def nodes_beside(claim: Claim, group: WorkerGroup, node_ids: Sequence[str]) -> tuple[str, ...]:
    """Where an attempt may go on that runs on ``node_ids``: there, and on up to as many other nodes with room
    now.
    """
    used = tuple(dict.fromkeys(node_ids))
    most = max(node_ids.count(node_id) for node_id in used)
    needed = {name: most * amount for name, amount in claim.resources.items()}
    others = [node_id for node_id in nodes_with_room(group, needed) if node_id not in used]
    return (*used, *others[: len(used)])


class ForkserverPool:
    """The forkservers of one driver. No method waits for a forkserver."""

    def __init__(self) -> None:
        self._key = ""
        self._kind: LoadedFor | None = None
        self._guards: dict[str, _Guarded] = {}
        self._is_unproven = False

    def keep(self, kind: LoadedFor, threads: str, node_ids: Sequence[str]) -> None:
        """Starts the forkservers that are missing, and ends those that are no longer of use.

        ``threads`` is the number of threads that workers of that kind were told to use.
        """
        if kind != self._kind:
            self.clear()
            self._kind, self._key = kind, uuid.uuid4().hex[:8]
        environment = kind.variables(threads)
        # Only a controller runs on the driver's node, unless the attempt uses that node. It needs less than a
        # worker.
        loads: dict[str, tuple[Strategy, ...]] = {ray.get_runtime_context().get_node_id(): ()}
        loads |= dict.fromkeys(node_ids, (kind.strategy,))
        self._drop_dead()
        for node_id, guarded in tuple(self._guards.items()):
            if loads.get(node_id) != guarded.load:
                _end(self._guards.pop(node_id))
        for node_id, load in loads.items():
            if (known := self._guards.get(node_id)) is None:
                self._guards[node_id] = _start(node_id, environment, self._key, load)
            else:
                # This call restarts a forkserver that has died.
                known.answer = known.guard.executable.remote()

    def executable(self, kind: LoadedFor) -> str | None:
        """What Ray is to start instead of Python, the same path on all nodes; None means Python.

        After a command that was not ``proven``, the next answer is None.
        """
        if kind != self._kind or self._is_unproven:
            self._is_unproven = False
            return None
        command = self.command()
        self._is_unproven = command is not None
        return command

    def command(self) -> str | None:
        """What ``executable`` would answer; None while a forkserver still loads."""
        answers = self._drop_dead()
        if len(answers) < len(self._guards) or len(set(answers)) != 1:
            return None
        return answers[0]

    def proven(self) -> None:
        """Workers exist, so the last command has worked."""
        self._is_unproven = False

    def clear(self) -> None:
        """Ends all forkservers. Processes that were forked from them go on."""
        for guarded in self._guards.values():
            _end(guarded)
        self._guards, self._kind, self._is_unproven = {}, None, False

    def _drop_dead(self) -> list[str]:
        """Drops the forkservers that have died; returns what the others have answered by now."""
        answers = []
        for node_id, guarded in tuple(self._guards.items()):
            try:
                answers += [ray.get(guarded.answer)] if _is_there(guarded.answer) else []
            except RayError:
                _end(self._guards.pop(node_id))
        return answers


@dataclass(slots=True, kw_only=True)
class _Guarded:
    load: tuple[Strategy, ...]
    guard: Any
    answer: Any


def _is_there(answer: Any) -> bool:
    return bool(ray.wait([answer], timeout=0)[0])


def _start(node_id: str, environment: Mapping[str, str], key: str, load: tuple[Strategy, ...]) -> _Guarded:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    # Ray writes these variables into its logs; all others reach the forkserver through its actor.
    settings = {"env_vars": {**propagated_variables(), **read_at_start(environment)}}
    make = ray.remote(num_cpus=0, scheduling_strategy=there, runtime_env=settings)(ForkserverActor)
    guard = make.remote(key, load, environment)
    return _Guarded(load=load, guard=guard, answer=guard.executable.remote())


def _end(guarded: _Guarded) -> None:
    with suppress(RayError):
        ray.kill(guarded.guard)
