"""One attempt of a long run as one worker group, through Ray Train."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.exceptions import ControllerError

from checkpointing.ray_hooks import Pointers, pointed_at
from cluster.inventory import WorkerGroup, node_names
from cluster.live import draining
from cluster.local_ray.variables import variables
from jobs.execution.attempt_end import withdraw
from jobs.execution.attempt_monitor import AttemptLife, limits_of
from jobs.execution.board import Assembled, Lost, Post, Ready
from jobs.execution.causes import LOST_AT_START, LOST_CONTROLLER, cause_of
from jobs.execution.messages import Beat
from jobs.execution.outcomes import AttemptFailed
from jobs.execution.resources import Claim
from jobs.launch.forkserver.pool import kind_for, nodes_beside
from jobs.launch.ray_train.driver_actors import Backstage
from jobs.launch.ray_train.on_nodes import on_node
from jobs.launch.ray_train.trainer import (
    Reporter,
    Trainer,
    give_back,
    is_lost_at_start,
    reason_of,
    scratch,
    train_settings,
)
from jobs.launch.ray_train.worker import Assignment, Peers, train
from jobs.training.health.postmortem import Remains, examine, stacks
from jobs.training.task.events import Resumption, Told
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import Wish, stronger
from jobs.training.task.task import Task

_POLL_INTERVAL_S = 0.25
_DRAIN_INTERVAL_S = 1.0
_BOARD_TIMEOUT_S = 60.0
_ABORT_TIMEOUT_S = 15.0
_KILL_TIMEOUT_S = 60.0
# Of how many ranks that stand still the stacks are asked for, one after another.
_MOST_STACKS = 2
# Steps come first, and many a short run is over by then.
_SETTLED_S = 5.0
# On a busy machine it takes so long to load, and that time is the training's.
_WORTH_PARENTS_S = 20.0
_STACKS_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where an attempt runs and how long things may take."""

    group: WorkerGroup
    claim: Claim
    schedule_timeout_s: float
    collective_timeout_s: float
    hang_timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps_spares: bool = False


def attempt(
    task: Task,
    seat: Seat,
    backstage: Backstage,
    listen: Callable[[Told | Beat], None],
    wish: Callable[[], Wish | None],
) -> str | None:
    """Runs it to its end; the generation that Ray's own result points at. Raises ``AttemptFailed``.

    The ranks follow what is wished; while there are none yet, it ends at once, as ``withdraw`` says. Call it
    from the main thread of a driver that is connected to Ray. An exception ends the workers first.
    """
    if not seat.keeps_spares:
        backstage.parents.clear()
    try:
        folder = scratch()
    except OSError as error:
        reason = f"no folder can be made on the driver's node: {error}"
        raise AttemptFailed(Failure(status="crash", reason=reason), "cluster away") from error
    with variables(train_settings(seat.schedule_timeout_s)), folder as storage:
        fit = _Fit(task, seat, backstage, storage)
        fit.start()
        try:
            while fit.is_going():
                time.sleep(_POLL_INTERVAL_S)
                fit.hear(listen)
                fit.judge()
                fit.pass_on(wish())
                fit.prepare()
            # What was posted while the last poll was on its way.
            fit.hear(listen)
        except RayError as error:
            # The board's node or the head: nobody can tell any more what the workers do.
            fit.abort()
            backstage.clear()
            raise AttemptFailed(Failure(status="crash", reason=reason_of(error)), "cluster away") from error
        except BaseException:
            fit.abort()
            raise
        return fit.result()


class _Fit:
    def __init__(self, task: Task, seat: Seat, backstage: Backstage, storage: str) -> None:
        self._name = f"{task.attempt}-{uuid.uuid4().hex[:8]}"
        self._task = task
        self._seat = seat
        self._backstage = backstage
        self._board = backstage.board()
        self._storage = storage
        limits = limits_of(
            task, schedule_timeout_s=seat.schedule_timeout_s, hang_timeout_s=seat.hang_timeout_s
        )
        self._life = AttemptLife(task.recipe.world_size, limits, time.monotonic(), self._examine)
        self._verdict: Failure | None = None
        self._condemned_s = 0.0
        self._wish: Wish | None = None
        self._next_look_s = 0.0
        self._resumed_s: float | None = None
        self._error: Exception | None = None
        self._result: Any = None
        recipe = task.recipe
        self._kind = kind_for(seat.claim, seat.environment, recipe.strategy) if seat.keeps_spares else None
        self._trainer = self._make_trainer()
        self._thread = threading.Thread(target=self._run, name="fit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_going(self) -> bool:
        """A cluster that doesn't even end an actor must not keep the next attempt waiting."""
        is_given_up = self._verdict is not None and time.monotonic() - self._condemned_s > _KILL_TIMEOUT_S
        return self._thread.is_alive() and not is_given_up

    def hear(self, listen: Callable[[Told | Beat], None]) -> None:
        for name, post in ray.get(self._board.take.remote(), timeout=_BOARD_TIMEOUT_S):
            # Not what the workers of an attempt before leave there late.
            if name == self._name:
                self._take(post, listen)

    def result(self) -> str | None:
        self._trainer.end()
        give_back(self._name)
        if self._error is not None or self._verdict is not None:
            raise self._failed(self._error)
        checkpoint = self._result.checkpoint
        return pointed_at(checkpoint) if checkpoint else None

    def judge(self) -> None:
        """Ends what can't go on, once every rank that has something to say of it has said it."""
        now = time.monotonic()
        if self._verdict is None and (failure := self._life.verdict(now)):
            is_stuck = failure.status == "hang" and not failure.log_tail
            self._verdict = replace(failure, log_tail=self._stacks(failure.ranks)) if is_stuck else failure
            self._condemned_s = now
        if self._verdict is not None:
            self._trainer.end()

    def pass_on(self, wish: Wish | None) -> None:
        """What is wished of the driver, or what its nodes make necessary."""
        wish = stronger(wish, self._drain())
        if wish is None or wish == self._wish:
            return
        self._wish = wish
        self._board.wish.remote(self._name, wish)
        if not self._life.ready:
            withdraw(wish, node_names(self._seat.group, self._life.node_ids))

    def prepare(self) -> None:
        """For the attempt that may follow, once this one has loaded all it needs; not if it ends soon."""
        is_settled = self._resumed_s is not None and time.monotonic() - self._resumed_s > _SETTLED_S
        if is_settled and self._kind and self._verdict is None:
            self._resumed_s = None
            ready = self._life.ready.get(0)
            is_worth_it = self._life.left_s(self._task.num_steps) > _WORTH_PARENTS_S
            if ready and self._life.node_ids and is_worth_it:
                # What can't be prepared is no reason to end what goes well.
                with suppress(RayError):
                    nodes = nodes_beside(self._seat.claim, self._seat.group, self._life.node_ids)
                    self._backstage.parents.keep(self._kind, ready.threads, nodes)

    def abort(self) -> None:
        """Also where the board is gone, and a controller that is just being started."""
        deadline = time.monotonic() + _ABORT_TIMEOUT_S
        while self.is_going() and time.monotonic() < deadline:
            self._trainer.end()
            time.sleep(_POLL_INTERVAL_S)
        give_back(self._name)

    def _drain(self) -> Wish | None:
        """Once it is known, it stays: the workers must be off the node before its deadline."""
        if self._wish is not None or time.monotonic() < self._next_look_s:
            return self._wish
        self._next_look_s = time.monotonic() + _DRAIN_INTERVAL_S
        leaving = draining(self._life.node_ids)
        names = node_names(self._seat.group, leaving)
        return Wish(aim="move on", why=f"draining: {', '.join(dict.fromkeys(names))}") if leaving else None

    def _take(self, post: Post, listen: Callable[[Told | Beat], None]) -> None:
        match post:
            case _ if isinstance(post, Told):
                if isinstance(post, Resumption):
                    self._resumed_s = time.monotonic()
                listen(post)
            case _:
                self._life.hear(post, time.monotonic())
                if isinstance(post, Assembled):
                    self._backstage.parents.proven()
                if isinstance(post, Beat):
                    listen(post)

    def _examine(self, lost: Lost, ready: Ready) -> Remains | None:
        """A node that is gone would only keep us waiting."""
        return None if lost.is_of_node else on_node(self._node_of(lost.rank), examine, ready.logs)

    def _stacks(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """Of the first few that it is about; a process that was stopped can't tell."""
        found = []
        for rank in ranks[:_MOST_STACKS]:
            if (ready := self._life.ready.get(rank)) is None:
                continue
            told = on_node(self._node_of(rank), stacks, ready.pid, ready.stacks, timeout_s=_STACKS_TIMEOUT_S)
            found += [f"rank {rank}: {line}" for line in told or ("tells of no stack",)]
            if told is None:
                # Its node does not answer: asking for more would only take time.
                break
        return tuple(found)

    def _node_of(self, rank: int) -> str:
        return self._life.node_ids[rank]

    def _failed(self, error: Exception | None) -> AttemptFailed:
        failure = self._verdict or self._life.failure() or self._untold(error)
        failure = self._life.with_step(failure)
        nodes = node_names(self._seat.group, self._life.node_ids)
        blamed = [nodes[rank] for rank in failure.ranks if rank < len(nodes)]
        failure = replace(failure, nodes=tuple(dict.fromkeys(blamed)))
        cause = cause_of(failure, next((self._life.lost.get(rank) for rank in failure.ranks), None))
        return AttemptFailed(failure, cause, tuple(dict.fromkeys(nodes)))

    def _untold(self, error: Exception | None) -> Failure:
        """What no rank could tell."""
        match error:
            case ControllerError(controller_failure=WorkerGroupStartupTimeoutError()):
                asked, limit_s = self._seat.claim.describe(), self._seat.schedule_timeout_s
                reason = f"not placed within {limit_s:g} s: asked {self._seat.group.name} for {asked}"
                return Failure(status="unschedulable", reason=reason)
            case ControllerError(controller_failure=found) if is_lost_at_start(found):
                return Failure(status="crash", reason=LOST_AT_START)
            case RayActorError():
                # The only actor that this is asked of; its workers end with it.
                return Failure(status="crash", reason=LOST_CONTROLLER)
        reason = reason_of(error) if error else "the workers ended without a word of it"
        return Failure(status="crash", reason=reason)

    def _run(self) -> None:
        try:
            self._result = self._trainer.fit()
        except Exception as error:
            self._error = error

    def _make_trainer(self) -> Trainer:
        task, seat = self._task, self._seat
        uses_device = task.vendor != "cpu" and not task.simulated
        assignment = Assignment(
            group=self._name,
            board=self._board,
            work=task,
            vendor=task.vendor,
            backend="nccl" if uses_device else "gloo",
            collective_timeout_s=seat.collective_timeout_s,
        )
        return Trainer(
            train,
            train_loop_config={"assignment": assignment},
            backend_config=Peers(),
            scaling_config=ScalingConfig(
                num_workers=seat.claim.num_workers,
                use_gpu="GPU" in seat.claim.resources,
                resources_per_worker=seat.claim.resources,
                placement_strategy=seat.claim.strategy,
                label_selector=seat.claim.selector,
            ),
            run_config=RunConfig(
                name=self._name,
                storage_path=self._storage,
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                callbacks=[Reporter(self._board, self._name), Pointers()],
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
            environment=seat.environment,
            executable=self._backstage.parents.executable(self._kind) if self._kind else None,
        )
