"""What a driver keeps between attempts: the board, and what waits for the next attempt."""

from contextlib import suppress
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.execution.board import Board
from jobs.launch.forkserver.ahead import WorkersAhead
from jobs.launch.forkserver.pool import ForkserverPool

# The board may have been idle for weeks; an answer usually takes a hundredth of this time.
_PATIENCE_S = 10.0


class DriverActors:
    """The actors of one driver. Safe to leave at any time; an actor that is gone is started anew when
    needed.
    """

    def __init__(self) -> None:
        self.parents = ForkserverPool()
        self.ahead = WorkersAhead()
        self._board: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def board(self, executable: str | None = None) -> Any:
        """The board. If the old board does not answer, a new one is started, so call this once per
        attempt. Ray starts ``executable``, if given, in place of Python.
        """
        if self._board is not None and not _answers(self._board):
            self._board = None
        if self._board is None:
            settings: dict[str, Any] = {}
            if executable:
                settings["runtime_env"] = {"py_executable": executable}
            make = ray.remote(num_cpus=0, scheduling_strategy=here(), **settings)(Board)
            self._board = make.remote()
        return self._board

    def clear(self) -> None:
        """Ends all of them, also if they are gone already."""
        if self._board is not None:
            with suppress(RayError):
                ray.kill(self._board)
        self._board = None
        # They end with the driver's job.
        self.ahead.pause()
        self.parents.clear()

    def clear_spares(self) -> None:
        """Ends what waits for the next attempt."""
        self.ahead.clear()
        self.parents.clear()


def _answers(board: Any) -> bool:
    try:
        ray.get(board.stop_request.remote(""), timeout=_PATIENCE_S)
    except RayError:
        return False
    return True


def here() -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
