"""What we change about Ray Train: a trainer without helpers, a reporter in its controller, and settings."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import get_placement_group, remove_placement_group

from cluster.environment import read_at_start
from cluster.local_ray import timeouts
from cluster.ray_internals import is_own_ray, propagated_variables, readiness_of, session_directory
from jobs.execution.board import Assembled, Post
from jobs.launch.forkserver.ahead import Environments
from jobs.launch.ray_train.driver_actors import here
from jobs.launch.ray_train.last_states import leave_last_state
from jobs.launch.ray_train.ray_errors import lost
from jobs.launch.ray_train.train_internals import (
    CallWorkers,
    DrivenTrainer,
    GroupWatcher,
    InEachWorker,
    name_placements,
    result_of,
    start_controller,
    start_timeout,
    without_autoscaler,
    without_extras,
)

# The driver waits no longer either, and ends the controller then.
_MOST_LEAVING_S = 600.0
# Ray retries again and again to start what does not start.
_CONTROLLER_TIMEOUT_S = 60.0


def environments(executable: str | None, environment: Mapping[str, str]) -> Environments:
    """What Ray is told of the controller and of the workers; it writes these into its logs."""
    instead = {"py_executable": executable} if executable else {}
    return Environments(
        controller={"env_vars": propagated_variables(), **instead},
        workers={"env_vars": read_at_start(environment), **instead},
    )


def give_back(placement: str) -> None:
    # Ray raises ValueError for a placement that is gone, as after every fit() that ended by itself.
    with suppress(ValueError):
        remove_placement_group(get_placement_group(placement))


class Trainer(DrivenTrainer):
    """A trainer that can be ended at any moment.

    Ray starts ``executable``, if given, in place of Python for its controller, its workers and all else that
    it starts. Its workers have ``environment`` before they load torch. No log and no command line shows
    ``environment``.

    Two helper processes per ``fit()`` are left out. One is for datasets, of which there are none. The other
    gives the placement back after its controller, which the driver does itself.
    """

    def __init__(
        self,
        *args: Any,
        executable: str | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._executable = executable
        self.run_config.worker_runtime_env = dict(environments(executable, environment or {}).workers)
        self._variables = InEachWorker(_set_variables, dict(environment or {}))
        self._controller: Any = None

    def end(self) -> None:
        """Ends the controller, if there is one. Ray ends its workers with it, also those that are stopped or
        stuck.

        A controller that has not begun is ended too. If another one begins instead, the next call ends that
        one.
        """
        controller, self._controller = self._controller, None
        if controller is not None:
            with suppress(RayError):
                ray.kill(controller)

    def drive(self, told: Mapping[str, Any]) -> Any:
        if is_own_ray():
            told = without_autoscaler(told, self.scaling_config)
        controller = self._start_controller(told, self._executable)
        if self._executable:
            try:
                ray.get(readiness_of(controller), timeout=_CONTROLLER_TIMEOUT_S)
            except GetTimeoutError:
                ray.kill(controller)
                # ``told`` refers to these settings, so its workers start without the executable too.
                del self.run_config.worker_runtime_env["py_executable"]
                controller = self._start_controller(told, None)
        return result_of(controller)

    def _start_controller(self, told: Mapping[str, Any], executable: str | None) -> Any:
        settings = dict(environments(executable, {}).controller)
        self._controller = controller = start_controller(
            told, num_cpus=0, scheduling_strategy=here(), runtime_env=settings
        )
        return controller

    def callbacks_first(self) -> Sequence[Any]:
        return (self._variables,)


def _set_variables(values: Mapping[str, str]) -> None:
    os.environ.update(values)


class Reporter(GroupWatcher):
    """Runs in Train's controller and posts what the controller sees. It never waits for the board."""

    def __init__(self, board: Any, group: str) -> None:
        self._board = board
        self._group = group
        self._dead: set[int] = set()
        self._answer: Any = None
        self._is_over = False

    def started(self) -> None:
        # Ray keeps a placement until its job ends, whatever becomes of the actor that asked for it. With a
        # name the driver can give it back, even while Ray still waits for it.
        name_placements(self._group)

    def assembled(self, node_ids: tuple[str, ...]) -> None:
        self._post(Assembled(node_ids=node_ids))

    def failed(self, rank: int, error: BaseException) -> None:
        post = lost(rank, error)
        self._is_over = True
        if post.is_death:
            self._dead.add(rank)
        self._post(post)

    def looked(self, call: CallWorkers) -> None:
        if self._is_over or (self._answer is not None and not ray.wait([self._answer], timeout=0)[0]):
            return
        if self._answer is not None and ray.get(self._answer):
            self._is_over = True
            call(leave_last_state, self._dead, 0.0)
            return
        self._answer = self._board.is_condemned.remote(self._group)

    def ends(self, call: CallWorkers) -> None:
        if not self._is_over:
            return
        for rank, error in call(leave_last_state, self._dead, _MOST_LEAVING_S).items():
            # Who could not leave for another reason has not been lost.
            if (post := lost(rank, error)).is_death:
                self._post(post)

    def _post(self, post: Post) -> None:
        self._board.post.remote(self._group, post)


def train_settings(schedule_timeout_s: float, world_size: int = 1) -> dict[str, str]:
    """Variables that Ray Train reads in the driver at each ``fit()``; it hands some on to its controller."""
    return {**start_timeout(schedule_timeout_s), **timeouts.in_train(world_size), **without_extras()}


def scratch() -> TemporaryDirectory[str]:
    """A temporary directory on the driver's node, where Train's controllers run too. Raises ``OSError`` if it
    cannot be made.

    It lies beside Ray's own files, so that a driver that is killed leaves nothing elsewhere.
    """
    # A dying controller may still write there.
    return TemporaryDirectory(prefix="longhaul-", dir=session_directory(), ignore_cleanup_errors=True)
