"""What a driver keeps between attempts: the board, and a controller of Train's for the next, with spares.

A controller is a process that takes seconds to start. One that waits is asleep until then.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.board import Board
from jobs.launch.spares import Spares, Wanted, group_with

# Of what has waited, for weeks maybe: an answer takes a hundredth of it.
_PATIENCE_S = 10.0


class Controller(TrainController):  # type: ignore[misc]  # ray's types are skipped
    """Train's own, which is told what to do after its process has started. Its spares end with it."""

    def __init__(self, wanted: Wanted | None) -> None:
        if wanted:
            self.worker_group_cls = group_with(Spares(wanted))

    def begin(self, settings: dict[str, str], told: dict[str, Any]) -> None:
        os.environ.update(settings)
        super().__init__(**told)


class Backstage:
    """Safe to leave at any time; what is gone is started anew when it is needed."""

    def __init__(self) -> None:
        self._board: Any = None
        self._next: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def board(self) -> Any:
        """Another one than before, where that one does not answer; so it is asked for once per attempt."""
        if self._board is not None and not _answers(self._board):
            self._board = None
        if self._board is None:
            self._board = ray.remote(num_cpus=0, scheduling_strategy=_here())(Board).remote()
        return self._board

    def prepare(self, wanted: Wanted | None) -> None:
        """Starts the next controller and its spares, under the settings that hold now; does not wait."""
        if self._next is None:
            self._next = _start(wanted)

    def begin(self, told: dict[str, Any], hold: Callable[[Any], None]) -> Any:
        """A controller that does as Train has ``told``. ``hold`` gets it before, and what is tried first."""
        waiting, self._next = self._next, None
        if waiting is not None:
            hold(waiting)
            try:
                return _begun(waiting, told, _PATIENCE_S)
            except (RayActorError, GetTimeoutError):
                ray.kill(waiting)
        controller = _start(None)
        hold(controller)
        return _begun(controller, told, None)

    def clear(self) -> None:
        """Ends all of it, also where it is gone already."""
        for actor in (self._board, self._next):
            if actor is not None:
                with suppress(RayError):
                    ray.kill(actor)
        self._board = self._next = None


def _start(wanted: Wanted | None) -> Any:
    settings = {"env_vars": get_env_vars_to_propagate()}
    make = ray.remote(num_cpus=0, scheduling_strategy=_here(), runtime_env=settings)(Controller)
    return make.remote(wanted)


def _begun(controller: Any, told: dict[str, Any], timeout_s: float | None) -> Any:
    ray.get(controller.begin.remote(get_env_vars_to_propagate(), told), timeout=timeout_s)
    return controller


def _answers(board: Any) -> bool:
    try:
        ray.get(board.wished.remote(""), timeout=_PATIENCE_S)
    except RayError:
        return False
    return True


def _here() -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
