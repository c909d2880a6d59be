"""Who carries out sessions: Ray, or this process (with its peers under ``torchrun``). One small protocol.

Neither torch nor Ray is imported before there is something to run.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.inventory import Inventory, WorkerGroup
from cluster.machine import this_machine
from jobs.grid import Cell
from jobs.sessions import Event, Limits, Session

Listen = Callable[[Event], None]
Queues = dict[str, list[Session]]


class PeersFailed(Exception):
    """A run failed under ``torchrun``: its row is there, but this process can't go on with the others."""


class Executor(Protocol):
    """Used as a context; what it connected to or started ends with it.

    Of several processes that carry out one sweep together, the one that ``speaks`` prints and judges.
    """

    @property
    def speaks(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def inventory(self) -> Inventory:
        """What is there to plan with; starts nothing."""

    def can_run(self, cell: Cell) -> bool: ...

    def describe(self) -> str:
        """What it can run, for messages."""

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        """The groups as they are now that it gets serious: starts what must run."""

    def run(self, queues: Queues, limits: Limits, listen: Listen) -> None: ...


class RayExecutor:
    """The cluster that ``RAY_ADDRESS`` names, else a private Ray, started when it is needed."""

    def __init__(self, *, verbose: bool, share_nodes: bool) -> None:
        self._verbose = verbose
        self._share_nodes = share_nodes
        self._connections = ExitStack()
        self._live: Inventory | None = None
        self.speaks = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def inventory(self) -> Inventory:
        return self._connect() if os.environ.get("RAY_ADDRESS") else this_machine()

    def can_run(self, cell: Cell) -> bool:
        return True

    def describe(self) -> str:
        return "any world size"

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        # A group that only a cluster file knows may still come up: the autoscaler starts what is asked for.
        live = self._connect()
        return {name: live.group(name) or group for name, group in planned.items()}

    def run(self, queues: Queues, limits: Limits, listen: Listen) -> None:
        from jobs.launch import launch

        launch(queues, limits, listen, share_nodes=self._share_nodes)

    def _connect(self) -> Inventory:
        if self._live is None:
            from cluster.live import live_inventory
            from cluster.local import ray_for_driver

            self._connections.enter_context(ray_for_driver(verbose=self._verbose))
            self._live = live_inventory()
        return self._live


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many ranks this process is; one of one unless ``torchrun`` says otherwise."""

    rank: int
    world_size: int
    local_rank: int

    @classmethod
    def of_this_process(cls) -> "Place":
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )


def is_under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


class InlineExecutor:
    """This process is the worker. It runs the cells of its world size; the others are for another start."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.speaks = place.rank == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def inventory(self) -> Inventory:
        return this_machine()

    def can_run(self, cell: Cell) -> bool:
        return cell.recipe.world_size == self._place.world_size

    def describe(self) -> str:
        return f"world size {self._place.world_size}; torchrun --nproc_per_node=N starts others"

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        return planned

    def run(self, queues: Queues, limits: Limits, listen: Listen) -> None:
        sessions: Sequence[Session] = [session for queue in queues.values() for session in queue]
        for session in sessions[:1]:
            # There is one local group, so one environment; it must stand before torch loads.
            os.environ.update(session.environment)
        from jobs.inline import run_inline

        run_inline(sessions, self._place, listen)
