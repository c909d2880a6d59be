"""What we change about Ray Train: its trainer without helpers, a reporter in its controller, its settings."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group

from cluster.environment import read_at_start
from cluster.local_ray import timeouts
from jobs.execution.board import Assembled, Post
from jobs.launch.ray_train.driver_actors import here
from jobs.launch.ray_train.ray_errors import lost

# Ray tries again and again to start what does not start.
_CONTROLLER_TIMEOUT_S = 60.0


def give_back(placement: str) -> None:
    # Ray raises ValueError for one that is gone, as after every fit() that ended by itself.
    with suppress(ValueError):
        remove_placement_group(get_placement_group(placement))


class Trainer(DataParallelTrainer):  # type: ignore[misc]  # ray's types are skipped
    """It can be ended at any moment. Ray starts ``executable`` in place of Python, if one is given, for its
    controller, its workers and whoever else it starts. Its workers have ``environment`` before they load
    torch; no log and no command line has it.

    Without two helper processes per ``fit()``: for datasets, of which there are none, and for giving the
    placement back after its controller, which the driver does itself.
    """

    def __init__(
        self,
        *args: Any,
        executable: str | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._environment = {"py_executable": executable} if executable else {}
        self.run_config.worker_runtime_env = {
            "env_vars": read_at_start(environment or {}),
            **self._environment,
        }
        self._variables = _Variables(environment or {})
        self._controller: Any = None

    def end(self) -> None:
        """Ray ends a controller's workers with it, also those that are stopped or stuck, and one that has
        not begun; if another one begins instead of it, the next call ends that.
        """
        controller, self._controller = self._controller, None
        if controller is not None:
            with suppress(RayError):
                ray.kill(controller)

    def _initialize_and_run_controller(self, **told: Any) -> Any:
        controller = self._start_controller(told, self._environment)
        if self._environment:
            try:
                ray.get(controller.__ray_ready__.remote(), timeout=_CONTROLLER_TIMEOUT_S)
            except GetTimeoutError:
                ray.kill(controller)
                # What is told refers to these settings: its workers start as always too.
                del self.run_config.worker_runtime_env["py_executable"]
                controller = self._start_controller(told, {})
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())

    def _start_controller(self, told: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
        settings = {"env_vars": get_env_vars_to_propagate(), **environment}
        make = ray.remote(num_cpus=0, scheduling_strategy=here(), runtime_env=settings)(TrainController)
        self._controller = controller = make.remote(**told)
        return controller

    def _create_default_callbacks(self) -> list[Any]:
        unwanted = (DatasetsCallback, PlacementGroupCleanerCallback)
        callbacks = super()._create_default_callbacks()
        return [self._variables, *(one for one in callbacks if not isinstance(one, unwanted))]


class _Variables(WorkerGroupCallback):  # type: ignore[misc]  # as above
    """Runs in Train's controller. A worker's calls are worked off in order, so that these stand before all
    that it is told later.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._values = dict(variables)

    def before_init_train_context(self, workers: Sequence[Any]) -> dict[str, list[Any]]:
        for worker in workers:
            worker.execute_async(_set_variables, self._values)
        return {}


def _set_variables(values: Mapping[str, str]) -> None:
    os.environ.update(values)


class Reporter(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # as above
    """Runs in Train's controller. It never waits for the board."""

    def __init__(self, board: Any, group: str) -> None:
        self._board = board
        self._group = group

    def after_controller_start(self, train_run_context: Any) -> None:
        # Ray keeps a placement until its job ends, whatever becomes of the actor that asked for it. By a
        # name the driver can give it back, even one that is still waited for.
        worker_group.placement_group = partial(placement_group, name=self._group)

    def before_init_train_context(self, workers: Sequence[Any]) -> dict[str, list[Any]]:
        self._post(Assembled(node_ids=tuple(worker.metadata.node_id for worker in workers)))
        return {}

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        for rank, error in worker_group_status.errors.items():
            self._post(lost(rank, error))

    def _post(self, post: Post) -> None:
        self._board.post.remote(self._group, post)


def train_settings(schedule_timeout_s: float) -> dict[str, str]:
    """Ray Train reads these in the driver at each ``fit()`` and hands some on to its controller."""
    return {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(schedule_timeout_s),
        **timeouts.IN_TRAIN,
        # Each of these is a process or a thread more beside the workers that are measured.
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # Files of its own beside those that Ray keeps anyway; and print() must reach the worker's log.
        "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        # The controller is an async actor that waits in its own calls on purpose.
        "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    }


def scratch() -> TemporaryDirectory[str]:
    """On the driver's node, where Train's controllers run too; beside Ray's own files, so that a driver that
    is killed leaves nothing elsewhere. ``OSError`` if it can't be made.
    """
    session = ray._private.worker._global_node.get_session_dir_path()
    # A controller that is just dying may still write there.
    return TemporaryDirectory(prefix="longhaul-", dir=session, ignore_cleanup_errors=True)
