"""Sessions on worker groups, through Ray Train. Groups go side by side, a group's sessions one by one.

Each session is one ``fit()`` over all its jobs, in a thread of its own. Results don't travel through Ray
Train: workers post them on a board, from which the driver fetches a few times a second, so that a
result is there as soon as its run ends. After any job that is not ok the whole worker group is ended and
the remaining jobs go on in a new one, because the peers of a rank that failed may be stuck for good.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.exceptions import ControllerError

from cluster.live import describe_free
from cluster.local_ray.variables import variables
from cluster.placement import Refused
from jobs.execution.board import Assembled, Post, Ready
from jobs.execution.cell_monitor import GroupLife
from jobs.execution.messages import Event, Limits, Session
from jobs.execution.resources import Claim, claim_of
from jobs.launch.ray_train.driver_actors import Backstage
from jobs.launch.ray_train.on_nodes import on_node
from jobs.launch.ray_train.trainer import Reporter, Trainer, give_back, reason_of, scratch, train_settings
from jobs.launch.ray_train.worker import Assignment, Peers, train
from jobs.training.health.postmortem import Remains, examine
from jobs.training.task.measurement import Failure

_POLL_INTERVAL_S = 0.25
# Ray's calls below answer in milliseconds; these deadlines are for a cluster that is breaking down.
_BOARD_TIMEOUT_S = 60.0
_ABORT_TIMEOUT_S = 15.0
_KILL_TIMEOUT_S = 60.0
# Beyond the time that a driver gives to one phase, a collective gives up by itself.
_COLLECTIVE_MARGIN_S = 60.0


def launch(
    queues: Mapping[str, Sequence[Session]],
    limits: Limits,
    listen: Callable[[Event], None],
    *,
    share_nodes: bool = False,
    spread: bool = False,
) -> None:
    """Works all queues off; ``listen`` hears every event, in this thread.

    Call it from the main thread of a driver that is connected to Ray. Whatever ends it early (Ctrl-C, a
    raising ``listen``) is raised again after all its worker groups are ended.
    """
    with variables(train_settings(limits.schedule_timeout_s)), scratch() as storage, Backstage() as backstage:
        board = backstage.board()
        terms = _Terms(
            limits=limits,
            board=board,
            storage=storage,
            share_nodes=share_nodes,
            spread=spread,
        )
        lanes = [_Lane(sessions, terms) for sessions in queues.values()]
        try:
            while lanes := [lane for lane in lanes if lane.advance(listen)]:
                time.sleep(_POLL_INTERVAL_S)
                for name, post in ray.get(board.take.remote(), timeout=_BOARD_TIMEOUT_S):
                    for lane in lanes:
                        lane.deliver(name, post, listen)
        finally:
            _end_all(lanes)


def _end_all(lanes: Sequence["_Lane"]) -> None:
    """Also controllers that are just being started."""
    deadline = time.monotonic() + _ABORT_TIMEOUT_S
    while [lane for lane in lanes if lane.abort()] and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What holds for every session. ``storage`` is a directory that Ray Train insists on; it stays empty."""

    limits: Limits
    board: Any
    storage: str
    share_nodes: bool
    spread: bool


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
        self._claim = claim_of(
            session.group, session.world_size, share_nodes=terms.share_nodes, spread=terms.spread
        )
        self._trainer = self._make_trainer(self._claim) if isinstance(self._claim, Claim) else None
        self._condemned_at: float | None = None
        self._was_seen_to_end = False

    @property
    def left(self) -> Session | None:
        left = self._life.left
        return replace(self._session, jobs=left) if left else None

    def start(self) -> None:
        if self._trainer:
            self._thread.start()

    def deliver(self, post: Post, listen: Callable[[Event], None]) -> None:
        if isinstance(post, Assembled):
            self._node_ids = post.node_ids
        for event in self._life.hear(post, time.monotonic()):
            listen(event)

    def is_over(self, listen: Callable[[Event], None]) -> bool:
        now = time.monotonic()
        for event in self._life.judge(now):
            listen(event)
        if self._life.is_condemned:
            self._condemned_at = self._condemned_at or now
            self._end()
        if self._thread.is_alive() and not self._is_given_up(now):
            return False
        if not self._was_seen_to_end:
            # What it posted last is fetched before anything is concluded from its silence.
            self._was_seen_to_end = True
            return False
        for event in self._last_events():
            listen(event)
        self._end()
        give_back(self.name)
        return True

    def _is_given_up(self, now: float) -> bool:
        """A cluster that doesn't even end an actor must not hold up the other runs."""
        return self._condemned_at is not None and now - self._condemned_at > _KILL_TIMEOUT_S

    def abort(self) -> bool:
        self._end()
        if self._thread.is_alive():
            return True
        give_back(self.name)
        return False

    def _end(self) -> None:
        if self._trainer:
            self._trainer.end()

    def _last_events(self) -> list[Event]:
        match self._claim, self._error:
            case Refused() as refused, _:
                return self._life.refuse(Failure(status="unschedulable", reason=refused.reason))
            case Claim() as claim, ControllerError(controller_failure=WorkerGroupStartupTimeoutError()):
                return self._life.refuse(self._unplaced(claim))
            case _, None:
                return self._life.end("the worker group ended before its jobs did", time.monotonic())
            case _, error:
                return self._life.end(reason_of(error), time.monotonic())

    def _unplaced(self, claim: Claim) -> Failure:
        group = self._session.group
        return Failure(
            status="unschedulable",
            reason=f"not placed within {self._terms.limits.schedule_timeout_s:g} s: asked {group.name} for "
            f"{claim.describe()}; {describe_free(group)}",
        )

    def _examine(self, rank: int, ready: Ready) -> Remains | None:
        return on_node(self._node_ids[rank], examine, ready.logs)

    def _run(self) -> None:
        assert self._trainer
        try:
            self._trainer.fit()
        except Exception as error:
            self._error = error

    def _make_trainer(self, claim: Claim) -> Trainer:
        session = self._session
        uses_device = session.group.vendor != "cpu" and not session.group.simulated
        assignment = Assignment(
            group=self.name,
            board=self._terms.board,
            work=session.jobs,
            vendor=session.jobs[0].vendor,
            backend="nccl" if uses_device else "gloo",
            collective_timeout_s=self._terms.limits.cell_timeout_s + _COLLECTIVE_MARGIN_S,
        )
        return Trainer(
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
                name=self.name,
                storage_path=self._terms.storage,
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                callbacks=[Reporter(self._terms.board, self.name)],
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
            environment=session.environment,
        )
