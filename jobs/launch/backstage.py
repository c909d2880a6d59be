"""What a driver keeps between attempts: the board, and a controller of Train's for the next, with spares.

A controller is a process that takes seconds to start. One that waits is asleep until then.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.board import Board
from jobs.launch.spares import Lent, Spares, Wanted, group_with

# Of what has waited, for weeks maybe: an answer takes a hundredth of it.
_PATIENCE_S = 10.0


class Controller(TrainController):  # type: ignore[misc]  # ray's types are skipped
    """Train's own, which is told what to do after its process has started."""

    def __init__(self) -> None:
        """Train's own begins later."""

    def begin(self, settings: dict[str, str], told: dict[str, Any], lent: Lent | None) -> None:
        os.environ.update(settings)
        if lent:
            self.worker_group_cls = group_with(lent)
        super().__init__(**told)


class Backstage:
    """Safe to leave at any time; what is gone is started anew when it is needed."""

    def __init__(self) -> None:
        self._board: Any = None
        self._next: Any = None
        self._spares = Spares()

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
        """Starts the next controller and what spares are missing; they get the settings that hold now."""
        if self._next is None:
            self._next = _start()
        if wanted:
            self._spares.keep(wanted)

    def begin(self, told: dict[str, Any], hold: Callable[[Any], None]) -> Any:
        """A controller that does as Train has ``told``. ``hold`` gets it before, and what is tried first."""
        waiting, self._next = self._next, None
        lent = self._spares.lend()
        if waiting is not None:
            hold(waiting)
            try:
                return _begun(waiting, told, lent, _PATIENCE_S)
            except (RayActorError, GetTimeoutError):
                ray.kill(waiting)
        controller = _start()
        hold(controller)
        return _begun(controller, told, lent, None)

    def assembled(self, node_ids: Sequence[str]) -> None:
        """The workers of what has begun are there: spares that they did not take wait on."""
        self._spares.take_back(node_ids)

    def end_workers(self) -> None:
        """What was a spare does not end with its controller, as others do."""
        self._spares.end_lent()

    def end_spares(self) -> None:
        self._spares.clear()

    def clear(self) -> None:
        """Ends all of it, also where it is gone already."""
        for actor in (self._board, self._next):
            if actor is not None:
                with suppress(RayError):
                    ray.kill(actor)
        self._board = self._next = None
        self._spares.clear()


def _start() -> Any:
    settings = {"env_vars": get_env_vars_to_propagate()}
    make = ray.remote(num_cpus=0, scheduling_strategy=_here(), runtime_env=settings)(Controller)
    return make.remote()


def _begun(controller: Any, told: dict[str, Any], lent: Lent | None, timeout_s: float | None) -> Any:
    ray.get(controller.begin.remote(get_env_vars_to_propagate(), told, lent), timeout=timeout_s)
    return controller


def _answers(board: Any) -> bool:
    try:
        ray.get(board.wished.remote(""), timeout=_PATIENCE_S)
    except RayError:
        return False
    return True


def _here() -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
