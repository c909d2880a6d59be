"""Sessions on worker groups, through Ray Train. Groups go side by side, a group's sessions one by one.

Each session is one ``fit()`` over all its jobs, in a thread of its own. Results don't travel through Ray
Train: workers post them on a board, from which the driver fetches a few times a second, so that a
result is there as soon as its run ends. After any job that is not ok the whole worker group is ended and
the remaining jobs go on in a new one, because the peers of a rank that failed may be stuck for good.
"""

import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.live import describe_free
from cluster.placement import Refused
from cluster.variables import variables
from jobs.board import Appointed, Assembled, Board, Lost, Post, Ready
from jobs.claims import Claim, claim_of
from jobs.group_life import GroupLife
from jobs.sessions import Event, Limits, Session
from jobs.training.measurement import Failure
from jobs.training.remains import Remains, examine
from jobs.training.worker import Assignment, Peers, train

_POLL_INTERVAL_S = 0.25
# Ray's calls below answer in milliseconds; these deadlines are for a cluster that is breaking down.
_BOARD_TIMEOUT_S = 60.0
_EXAMINE_TIMEOUT_S = 15.0
_ABORT_TIMEOUT_S = 15.0
_KILL_TIMEOUT_S = 60.0
# Beyond the time that a driver gives to one phase, a collective gives up by itself.
_COLLECTIVE_MARGIN_S = 60.0
_CAUSE_OF_DEATH = re.compile(r"The actor (?:is dead|died) because ([^.\n]+)")


def launch(
    queues: Mapping[str, Sequence[Session]],
    limits: Limits,
    listen: Callable[[Event], None],
    *,
    share_nodes: bool = False,
) -> None:
    """Works all queues off; ``listen`` hears every event, in this thread.

    Call it from the main thread of a driver that is connected to Ray. Whatever ends it early (Ctrl-C, a
    raising ``listen``) is raised again after all its worker groups are ended.
    """
    with variables(_train_settings(limits)), _storage() as storage, _board() as board:
        terms = _Terms(limits=limits, board=board, storage=storage, share_nodes=share_nodes)
        lanes = [_Lane(sessions, terms) for sessions in queues.values()]
        try:
            while lanes := [lane for lane in lanes if lane.advance(listen)]:
                time.sleep(_POLL_INTERVAL_S)
                _deliver(board, lanes, listen)
        finally:
            _end_all(lanes, board)


def _deliver(board: Any, lanes: Sequence["_Lane"], listen: Callable[[Event], None]) -> None:
    for name, post in ray.get(board.take.remote(), timeout=_BOARD_TIMEOUT_S):
        for lane in lanes:
            lane.deliver(name, post, listen)


def _end_all(lanes: Sequence["_Lane"], board: Any) -> None:
    """A controller that is still starting tells its handle on the board, and is ended then."""
    deadline = time.monotonic() + _ABORT_TIMEOUT_S
    while (ending := [lane for lane in lanes if lane.abort()]) and time.monotonic() < deadline:
        _deliver(board, ending, _hear_nothing)
        time.sleep(_POLL_INTERVAL_S)


def _hear_nothing(_event: Event) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What holds for every session. ``storage`` is a directory that Ray Train insists on; it stays empty."""

    limits: Limits
    board: Any
    storage: str
    share_nodes: bool


class _Lane:
    """One group's queue, with at most one worker group at a time."""

    def __init__(self, sessions: Sequence[Session], terms: _Terms) -> None:
        self._sessions = deque(sessions)
        self._terms = terms
        self._fit: _Fit | None = None

    def advance(self, listen: Callable[[Event], None]) -> bool:
        """Judges what runs and starts what is next; False once all is done."""
        if self._fit is not None:
            if not self._fit.is_over(listen):
                return True
            if self._fit.left is not None:
                self._sessions.appendleft(self._fit.left)
            self._fit = None
        if not self._sessions:
            return False
        self._fit = _Fit(self._sessions.popleft(), self._terms)
        self._fit.start()
        return True

    def deliver(self, name: str, post: Post, listen: Callable[[Event], None]) -> None:
        if self._fit is not None and self._fit.name == name:
            self._fit.deliver(post, listen)

    def abort(self) -> bool:
        """Whether its worker group is still there; it is ended as soon as that is possible."""
        return self._fit is not None and self._fit.abort()


class _Fit:
    """One ``fit()`` in a thread of its own; the main thread follows the life of its worker group."""

    def __init__(self, session: Session, terms: _Terms) -> None:
        self.name = uuid.uuid4().hex
        self._session = session
        self._terms = terms
        self._life = GroupLife(session.jobs, terms.limits, time.monotonic(), self._examine)
        self._thread = threading.Thread(target=self._run, name=f"fit-{session.group.name}", daemon=True)
        self._error: Exception | None = None
        self._node_ids: tuple[str, ...] = ()
        self._controller: Any = None
        self._claim = claim_of(session, share_nodes=terms.share_nodes)
        self._condemned_at: float | None = None
        self._was_seen_to_end = False

    @property
    def left(self) -> Session | None:
        left = self._life.left
        return replace(self._session, jobs=left) if left else None

    def start(self) -> None:
        if isinstance(self._claim, Claim):
            self._thread.start()

    def deliver(self, post: Post, listen: Callable[[Event], None]) -> None:
        match post:
            case Appointed():
                self._controller = post.controller
            case Assembled():
                self._node_ids = post.node_ids
        for event in self._life.hear(post, time.monotonic()):
            listen(event)

    def is_over(self, listen: Callable[[Event], None]) -> bool:
        now = time.monotonic()
        for event in self._life.judge(now):
            listen(event)
        if self._life.is_condemned:
            self._condemned_at = self._condemned_at or now
            self._kill()
        if self._thread.is_alive() and not self._is_given_up(now):
            return False
        if not self._was_seen_to_end:
            # What it posted last is fetched before anything is concluded from its silence.
            self._was_seen_to_end = True
            return False
        for event in self._last_events():
            listen(event)
        self._kill()
        _give_back(self.name)
        return True

    def _is_given_up(self, now: float) -> bool:
        """A cluster that doesn't even end an actor must not hold up the other runs."""
        return self._condemned_at is not None and now - self._condemned_at > _KILL_TIMEOUT_S

    def abort(self) -> bool:
        self._kill()
        if self._thread.is_alive():
            return True
        _give_back(self.name)
        return False

    def _kill(self) -> None:
        """Ray ends a controller's workers with it, also those that are stopped or stuck."""
        if self._controller is not None:
            ray.kill(self._controller)
            self._controller = None

    def _last_events(self) -> list[Event]:
        match self._claim, self._error:
            case Refused() as refused, _:
                return self._life.refuse(Failure(status="unschedulable", reason=refused.reason))
            case Claim() as claim, ControllerError(controller_failure=WorkerGroupStartupTimeoutError()):
                return self._life.refuse(self._unplaced(claim))
            case _, None:
                return self._life.end("the worker group ended before its jobs did", time.monotonic())
            case _, error:
                return self._life.end(_reason(error), time.monotonic())

    def _unplaced(self, claim: Claim) -> Failure:
        group = self._session.group
        return Failure(
            status="unschedulable",
            reason=f"not placed within {self._terms.limits.schedule_timeout_s:g} s: asked {group.name} for "
            f"{claim.describe()}; {describe_free(group)}",
        )

    def _examine(self, rank: int, ready: Ready) -> Remains | None:
        node_id = self._node_ids[rank]
        if node_id == ray.get_runtime_context().get_node_id():
            return examine(ready.logs)
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(examine)
        try:
            remains: Remains = ray.get(task.remote(ready.logs), timeout=_EXAMINE_TIMEOUT_S)
        except RayError:
            return None
        return remains

    def _run(self) -> None:
        assert isinstance(self._claim, Claim)
        try:
            self._trainer(self._claim).fit()
        except Exception as error:
            self._error = error

    def _trainer(self, claim: Claim) -> "_Trainer":
        session = self._session
        uses_device = session.group.vendor != "cpu" and not session.group.simulated
        assignment = Assignment(
            group=self.name,
            board=self._terms.board,
            jobs=session.jobs,
            backend="nccl" if uses_device else "gloo",
            collective_timeout_s=self._terms.limits.cell_timeout_s + _COLLECTIVE_MARGIN_S,
        )
        return _Trainer(
            train,
            train_loop_config={"assignment": assignment},
            backend_config=Peers(),
            scaling_config=ScalingConfig(
                num_workers=claim.num_workers,
                use_gpu="GPU" in claim.resources,
                resources_per_worker=claim.resources,
                placement_strategy="STRICT_PACK" if claim.is_on_one_node else "PACK",
                label_selector=claim.selector,
            ),
            run_config=RunConfig(
                name=self.name,
                storage_path=self._terms.storage,
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                callbacks=[_Reporter(self._terms.board, self.name)],
                worker_runtime_env={"env_vars": dict(session.environment)},
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )


def _give_back(placement: str) -> None:
    # Ray raises ValueError for one that is gone, as after every fit() that ended by itself.
    with suppress(ValueError):
        remove_placement_group(get_placement_group(placement))


class _Trainer(DataParallelTrainer):  # type: ignore[misc]  # ray's types are skipped
    """Without two helper processes per ``fit()``: for datasets, of which there are none, and for giving the
    placement back after its controller, which the driver does itself.
    """

    def _create_default_callbacks(self) -> list[Any]:
        unwanted = (DatasetsCallback, PlacementGroupCleanerCallback)
        return [
            callback for callback in super()._create_default_callbacks() if not isinstance(callback, unwanted)
        ]


class _Reporter(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # as above
    """Runs in Train's controller. It never waits for the board."""

    def __init__(self, board: Any, group: str) -> None:
        self._board = board
        self._group = group

    def after_controller_start(self, train_run_context: Any) -> None:
        # Ray keeps a placement until its job ends, whatever becomes of the actor that asked for it. By a
        # name the driver can give it back, even one that is still waited for.
        worker_group.placement_group = partial(placement_group, name=self._group)
        self._post(Appointed(controller=ray.get_runtime_context().current_actor))

    def before_init_train_context(self, workers: Sequence[Any]) -> dict[str, list[Any]]:
        self._post(Assembled(node_ids=tuple(worker.metadata.node_id for worker in workers)))
        return {}

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        for rank, error in worker_group_status.errors.items():
            self._post(_lost(rank, error))

    def _post(self, post: Post) -> None:
        self._board.post.remote(self._group, post)


def _lost(rank: int, error: BaseException) -> Lost:
    cause = error.health_check_failure if isinstance(error, WorkerHealthCheckFailedError) else error
    is_death = isinstance(cause, RayActorError)
    found = _CAUSE_OF_DEATH.search(str(cause)) if is_death else None
    return Lost(
        rank=rank,
        reason=found[1] if found else _reason(cause),
        is_death=is_death,
        is_out_of_memory=isinstance(cause, OutOfMemoryError),
    )


def _reason(error: BaseException) -> str:
    """Type and first line, of the cause where Ray only wraps it."""
    match error:
        case RayTaskError(cause=cause) | ControllerError(controller_failure=cause):
            return _reason(cause)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"


def _train_settings(limits: Limits) -> dict[str, str]:
    """Ray Train reads these in the driver at each ``fit()`` and hands some on to its controller."""
    return {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(limits.schedule_timeout_s),
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
        # Each of these is a process or a thread more beside the workers that are measured.
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # Files of its own beside those that Ray keeps anyway; and print() must reach the worker's log.
        "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }


@contextmanager
def _storage() -> Iterator[str]:
    """On the driver's node, where Train's controllers run too; beside Ray's own files, so that a driver that
    is killed leaves nothing elsewhere.
    """
    session = ray._private.worker._global_node.get_session_dir_path()
    with TemporaryDirectory(prefix="longhaul-", dir=session) as folder:
        yield folder


@contextmanager
def _board() -> Iterator[Any]:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    board = ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()
    try:
        yield board
    finally:
        ray.kill(board)
