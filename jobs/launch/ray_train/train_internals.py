"""The only door to the private names of Ray Train, each behind a function or class that says what it
promises.

Ray may change these names in any version: ``tests/live/machines/test_ray_internals.py`` lists every one and
fails by name. The private names of Ray itself are in ``cluster.ray_internals``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import placement_group


class DrivenTrainer(DataParallelTrainer):  # type: ignore[misc]  # ray's types are skipped
    """A trainer whose ``fit()`` asks ``drive`` for its result, and adds no handler of Ctrl-C.

    Two callbacks of Ray's are left out, each of which starts a process. One is for datasets. The other gives
    the placement back after the controller has died, which is the caller's duty here.
    """

    def drive(self, told: Mapping[str, Any]) -> Any:
        """Called once by each ``fit()``, in its thread; ``told`` is for ``start_controller``."""
        raise NotImplementedError

    def callbacks_first(self) -> Sequence[Any]:
        """The callbacks, such as ``InEachWorker``, that are called before all of Ray's."""
        return ()

    def _initialize_and_run_controller(self, **told: Any) -> Any:
        return self.drive(told)

    def _create_default_callbacks(self) -> list[Any]:
        unwanted = (DatasetsCallback, PlacementGroupCleanerCallback)
        rays = super()._create_default_callbacks()
        return [*self.callbacks_first(), *(one for one in rays if not isinstance(one, unwanted))]


def start_controller(told: Mapping[str, Any], **options: Any) -> Any:
    """Starts a controller, an actor with these ``options`` of ``ray.remote``. It runs nothing yet; its
    workers end with it.
    """
    return ray.remote(**options)(TrainController).remote(**told)


def result_of(controller: Any) -> Any:
    """Runs the controller to its end in the calling thread; returns its ``Result``, or raises what ``fit()``
    raises.
    """
    ray.get(controller.run.remote())
    return ray.get(controller.get_result.remote())


class AskingNobody(FixedScalingPolicy):  # type: ignore[misc]  # ray's types are skipped
    """So many workers as were asked for, without an actor that tells an autoscaler of them.

    Ray's own policy starts that actor, and the controller waits for it.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        return None

    def _maybe_send_resource_request(self) -> None:
        return None


def without_autoscaler(told: Mapping[str, Any], scaling: Any) -> dict[str, Any]:
    """``told`` for ``start_controller``, where no node can ever join. ``scaling`` is a trainer's own."""
    return {**told, "scaling_policy": AskingNobody(scaling)}


class InEachWorker(WorkerGroupCallback):  # type: ignore[misc]  # ray's types are skipped
    """A callback: each worker calls ``act`` with the arguments ``about``, before all its later calls. Nobody
    waits for the call.
    """

    def __init__(self, act: Callable[..., None], *about: Any) -> None:
        self._act, self._about = act, about

    def before_init_train_context(self, workers: Sequence[Any]) -> dict[str, list[Any]]:
        for worker in workers:
            # A worker carries out its calls in order.
            worker.execute_async(self._act, *self._about)
        return {}


class GroupWatcher(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # as above
    """A callback for ``RunConfig``. Its methods are called in the controller's process, by the only thread
    there.
    """

    def started(self) -> None:
        """Called once per controller, before anything is placed."""
        raise NotImplementedError

    def assembled(self, node_ids: tuple[str, ...]) -> None:
        """Called when every worker is up and has its rank; ``node_ids`` are by rank."""
        raise NotImplementedError

    def failed(self, rank: int, error: BaseException) -> None:
        """Called at each look of the controller, for each rank that has failed by then."""
        raise NotImplementedError

    _workers: Sequence[Any] = ()

    def looked(self, call: "CallWorkers") -> None:
        """Called at each look of the controller, once all workers are up."""
        raise NotImplementedError

    def ends(self, call: "CallWorkers") -> None:
        """Called right before the workers are ended, whatever the reason."""
        raise NotImplementedError

    def after_controller_start(self, train_run_context: Any) -> None:
        self.started()

    def before_init_train_context(self, workers: Sequence[Any]) -> dict[str, list[Any]]:
        self._workers = workers
        self.assembled(tuple(worker.metadata.node_id for worker in workers))
        return {}

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        for rank, error in worker_group_status.errors.items():
            self.failed(rank, error)
        self.looked(partial(_call, self._workers))

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self.ends(partial(_call, self._workers))


class CallWorkers(Protocol):
    def __call__(
        self, act: Callable[[], None], without: Collection[int], within_s: float
    ) -> Mapping[int, BaseException]:
        """Has the workers call ``act``, but those of the ranks ``without``. Waits for them for so long at
        most; returns the errors of those that could not. One whose node is silent just does not answer.
        """


def _call(
    workers: Sequence[Any], act: Callable[[], None], without: Collection[int], within_s: float
) -> dict[int, BaseException]:
    calls = {worker.execute_async(act): rank for rank, worker in enumerate(workers) if rank not in without}
    done, _ = ray.wait([*calls], num_returns=len(calls), timeout=within_s) if calls else ([], [])
    errors: dict[int, BaseException] = {}
    for call in done:
        try:
            ray.get(call)
        except RayError as error:
            errors[calls[call]] = error
    return errors


def name_placements(name: str) -> None:
    """From now on, in this process, Ray Train asks for its workers' placement under this name."""
    worker_group.placement_group = partial(placement_group, name=name)


def found_no_room(failure: BaseException) -> bool:
    """Whether the workers found no room in time. ``failure`` is the failure of a ``ControllerError``."""
    return isinstance(failure, WorkerGroupStartupTimeoutError)


def is_start_failed(failure: BaseException) -> bool:
    """Whether a worker died while it was set up. Ray does not say which one."""
    return isinstance(failure, WorkerGroupStartupFailedError)


def behind_health_check(error: BaseException) -> BaseException:
    """Why the controller could not ask a worker for its health. Any other error is returned as it is."""
    if isinstance(error, WorkerHealthCheckFailedError):
        cause: BaseException = error.health_check_failure
        return cause
    return error


def start_timeout(seconds: float) -> dict[str, str]:
    """Variables of a driver: for workers that are not up after so long, ``found_no_room`` is true."""
    return {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(seconds)}


def without_extras() -> dict[str, str]:
    """Variables of a driver: Ray Train adds nothing to the workers but the training."""
    return {
        # Each of these would add a process or a thread beside the workers that are measured.
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # These would add files to those that Ray keeps anyway; and print() must reach the worker's log.
        "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        # The controller is an async actor that waits in its own calls on purpose.
        "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
    }
