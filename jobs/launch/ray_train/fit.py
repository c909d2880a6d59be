"""One ``fit()`` of Ray Train, for a session's cells or a run's attempt: its thread and its end."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig

from cluster.inventory import Vendor
from jobs.execution.resources import Claim
from jobs.launch.ray_train.trainer import Reporter, Trainer, give_back
from jobs.launch.ray_train.worker import Assignment, Peers, train
from jobs.training.task.job import Job
from jobs.training.task.task import Task

_POLL_INTERVAL_S = 0.25
# Ray ends a worker group in moments; these deadlines are for a cluster that is breaking down.
_ABORT_TIMEOUT_S = 15.0
_KILL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """A worker group to start: its work, its place, and the ``name`` under which it posts on the board.

    ``storage`` is a directory that Ray Train requires. ``executable`` is started instead of Python.
    """

    name: str
    board: Any
    work: tuple[Job, ...] | Task
    vendor: Vendor
    simulated: bool
    claim: Claim
    storage: str
    environment: Mapping[str, str]
    collective_timeout_s: float
    checkpoints: CheckpointConfig | None = None
    callbacks: Sequence[Any] = field(default=())
    executable: str | None = None


class Fit:
    """A ``fit()`` in a thread of its own. The main thread polls it, and may end it at any time.

    Once it is over, ``error`` is what ``fit()`` raised and ``result`` what it returned.
    """

    def __init__(self, name: str, trainer: Trainer) -> None:
        self.name = name
        self.error: Exception | None = None
        self.result: Any = None
        self._trainer = trainer
        self._condemned_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="fit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_going(self) -> bool:
        """Whether to wait for it. A condemned ``fit()`` is given up after a minute: a cluster that cannot
        even end an actor must not block what comes next.
        """
        return self._thread.is_alive() and not self._is_given_up()

    def condemn(self) -> None:
        """Ends the workers. Call this until ``is_going`` is False: a controller may just have been
        started.
        """
        if self._condemned_s is None:
            self._condemned_s = time.monotonic()
        self._trainer.end()

    def close(self) -> None:
        """Leaves nothing of this ``fit()`` on the cluster, whatever becomes of its thread."""
        self._trainer.end()
        give_back(self.name)

    def _is_given_up(self) -> bool:
        return self._condemned_s is not None and time.monotonic() - self._condemned_s > _KILL_TIMEOUT_S

    def _run(self) -> None:
        try:
            self.result = self._trainer.fit()
        except Exception as error:
            self.error = error


def fit_of(order: GroupOrder) -> Fit:
    """The ``Fit`` of an order; the caller starts it."""
    claim, uses_device = order.claim, order.vendor != "cpu" and not order.simulated
    assignment = Assignment(
        group=order.name,
        board=order.board,
        work=order.work,
        vendor=order.vendor,
        backend="nccl" if uses_device else "gloo",
        collective_timeout_s=order.collective_timeout_s,
    )
    trainer = Trainer(
        train,
        train_loop_config={"assignment": assignment},
        backend_config=Peers(),
        scaling_config=ScalingConfig(
            num_workers=claim.num_workers,
            use_gpu="GPU" in claim.resources,
            resources_per_worker=claim.resources,
            placement_strategy=claim.strategy,
            label_selector=claim.selector,
        ),
        run_config=RunConfig(
            name=order.name,
            storage_path=order.storage,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            checkpoint_config=order.checkpoints,
            callbacks=[Reporter(order.board, order.name), *order.callbacks],
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
        environment=order.environment,
        executable=order.executable,
    )
    return Fit(order.name, trainer)


def abort(fits: Sequence[Fit]) -> None:
    """Ends all of ``fits``, also if the board is gone. Waits for them, but not for long."""
    deadline = time.monotonic() + _ABORT_TIMEOUT_S
    while (going := [fit for fit in fits if fit.is_going()]) and time.monotonic() < deadline:
        for fit in going:
            fit.condemn()
        time.sleep(_POLL_INTERVAL_S)
    for fit in fits:
        fit.close()
