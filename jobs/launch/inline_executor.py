"""The executor in this process, with its peers under ``torchrun``.

Torch is not imported before there is something to run.
"""

import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Self

from cluster.inventory import Inventory, WorkerGroup
from cluster.this_machine import this_machine
from jobs.commandline.usage_error import SpecError
from jobs.execution.executor import AttemptOrder, Hear, Listen, MakeTask, Queues
from jobs.execution.messages import SessionLimits, Upcoming
from jobs.execution.outcomes import LastWord, Outcome, Unmendable
from jobs.launch.torchrun import LauncherPlace


class InlineExecutor:
    """This process is the worker. It runs the cells of its own world size; other cells need another start."""

    def __init__(self, place: LauncherPlace) -> None:
        self._place = place
        self.is_main_process = place.rank == 0
        # Peers that are stuck in a collective can't follow to another attempt.
        self.can_retry = place.world_size == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def inventory(self) -> Inventory:
        return this_machine()

    def can_run(self, world_size: int) -> bool:
        return world_size == self._place.world_size

    def describe(self) -> str:
        return f"world size {self._place.world_size}; torchrun --nproc_per_node=N starts others"

    def starts(self) -> str:
        return ""

    def groups(
        self, planned: dict[str, WorkerGroup], upcoming: Upcoming | None = None
    ) -> dict[str, WorkerGroup]:
        return planned

    def run(self, queues: Queues, limits: SessionLimits, listen: Listen) -> None:
        # There is one local group, which never waits for another.
        sessions = (session for session in chain.from_iterable(queues.values()) if session)
        first = next(sessions, None)
        if first is None:
            return
        # One group has one environment; it must stand before torch loads.
        os.environ.update(first.environment)
        from jobs.launch.inline import run_inline

        run_inline(chain([first], sessions), self._place, listen)

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        own = self._place.world_size
        return (own,) if own in wanted else wanted

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int | None:
        return None

    def num_there(self, group: WorkerGroup) -> int | None:
        return None

    def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> None:
        return None

    def way_rates(self, group: WorkerGroup, nodes: Sequence[str], is_wanted: Callable[[], bool]) -> None:
        return None

    def attempt(self, order: AttemptOrder, make_task: MakeTask, hear: Hear) -> Outcome:
        if order.world_size != self._place.world_size:
            wrong = f"world_size: {order.world_size}, but this start is of {self.describe()}"
            return Unmendable(error=SpecError([wrong]))
        os.environ.update(order.environment)
        from jobs.launch.inline import attempt_inline

        last = LastWord(hear)
        return last.judge(
            attempt_inline(make_task, self._place, last.hear, order.stop_request, order.collective_timeout_s)
        )
