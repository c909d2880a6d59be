"""Runs one attempt of a long run as one worker group, through Ray Train."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import CheckpointConfig

from checkpointing.ray_hooks import Pointers, pointed_at
from cluster.environment import is_on_cpus
from cluster.inventory import WorkerGroup, node_names
from cluster.live import draining, lost_nodes
from cluster.local_ray.variables import variables
from jobs.execution.board import Assembled, Post, Ready
from jobs.execution.causes import cause_of
from jobs.execution.hang_detection import limits_of
from jobs.execution.messages import Heartbeat
from jobs.execution.monitor import GroupMonitor, Inquiry, did_not_meet
from jobs.execution.outcomes import Cancelled, Completed, Failed, crashed, withdrawn
from jobs.execution.resources import Claim
from jobs.launch.forkserver.beside_driver import DriverForkserver
from jobs.launch.forkserver.pool import LoadedFor, kind_for, nodes_beside
from jobs.launch.ray_train.driver_actors import DriverActors
from jobs.launch.ray_train.fit import Fit, GroupOrder, abort, fit_of
from jobs.launch.ray_train.node_links import broken_ways
from jobs.launch.ray_train.on_nodes import on_node
from jobs.launch.ray_train.ray_errors import is_not_placed, lost_with_node, reason_of, untold
from jobs.launch.ray_train.trainer import environments, scratch, train_settings
from jobs.training.health.postmortem import Postmortem, examine, stacks
from jobs.training.task.events import Resumption, RunEvent
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest, stronger
from jobs.training.task.task import Task

_POLL_INTERVAL_S = 0.25
_DRAIN_INTERVAL_S = 1.0
_BOARD_TIMEOUT_S = 60.0
# The stacks of at most so many stalled ranks are asked for, one rank after another.
_MOST_STACKS = 2
# After loading, steps come first, and many a short run is over by then.
_SETTLED_S = 5.0
# A forkserver takes so long to load on a busy machine, and slows down the training meanwhile.
_WORTH_PARENTS_S = 20.0
_PREPARATION_INTERVAL_S = 1.0
_STACKS_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeat:
    """Where an attempt runs and how long things may take."""

    group: WorkerGroup
    claim: Claim
    schedule_timeout_s: float
    collective_timeout_s: float
    hang_timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps_spares: bool = False
    # On a private Ray.
    forkserver: DriverForkserver | None = None

    @property
    def forkserver_that_fits(self) -> DriverForkserver | None:
        forkserver = self.forkserver if is_on_cpus(self.group) else None
        return forkserver if forkserver and forkserver.fits(self.environment) else None


def attempt(
    task: Task,
    seat: AttemptSeat,
    backstage: DriverActors,
    listen: Callable[[RunEvent | Heartbeat], None],
    stop_request: Callable[[], StopRequest | None],
) -> Completed | Cancelled | Failed:
    """Runs an attempt to its end, however it ends.

    The ranks follow a stop request. Before there are ranks, a stop request ends the attempt at once, as
    ``withdrawn`` says. Call this from the main thread of a driver that is connected to Ray. Before an
    exception leaves this call, the workers are ended.
    """
    if not seat.keeps_spares:
        backstage.clear_spares()
        if seat.forkserver is not None:
            seat.forkserver.end()
    try:
        folder = scratch()
    except OSError as error:
        return crashed(f"no folder can be made on the driver's node: {error}", "cluster away")
    settings = train_settings(seat.schedule_timeout_s, task.recipe.world_size)
    with variables(settings), folder as storage:
        followed = _begin(task, seat, backstage, storage)
        try:
            early = _follow(followed, listen, stop_request)
        except RayError as error:
            # The board's node or the head is gone: nobody can tell any more what the workers do.
            abort([followed.fit])
            backstage.clear()
            return crashed(reason_of(error), "cluster away")
        except BaseException:
            abort([followed.fit])
            raise
        if early is not None:
            abort([followed.fit])
        if seat.forkserver is not None and not followed.is_assembled:
            # Perhaps no worker can be forked from it.
            seat.forkserver.end()
        return early or followed.outcome()


def _follow(
    followed: "_Followed",
    listen: Callable[[RunEvent | Heartbeat], None],
    stop_request: Callable[[], StopRequest | None],
) -> Cancelled | Failed | None:
    """Follows an attempt until its ``fit`` is over, or until a stop request comes before there are ranks."""
    while followed.fit.is_going():
        time.sleep(_POLL_INTERVAL_S)
        followed.hear(listen)
        followed.judge()
        if early := followed.pass_on(stop_request()):
            return early
        followed.prepare()
    # Posts may have arrived during the last poll.
    followed.hear(listen)
    return None


def _begin(task: Task, seat: AttemptSeat, backstage: DriverActors, storage: str) -> "_Followed":
    strategy = task.recipe.strategy
    forkserver = seat.forkserver_that_fits
    executable, kind = forkserver.executable() if forkserver else None, None
    board = backstage.board(executable)
    if executable is None and seat.keeps_spares:
        kind = kind_for(seat.claim, seat.group, seat.environment, strategy)
        executable = backstage.parents.executable(kind) if kind else None
    order = GroupOrder(
        name=f"{task.attempt}-{uuid.uuid4().hex[:8]}",
        board=board,
        work=task,
        vendor=task.vendor,
        simulated=task.simulated,
        claim=seat.claim,
        storage=storage,
        environment=seat.environment,
        collective_timeout_s=seat.collective_timeout_s,
        checkpoints=CheckpointConfig(num_to_keep=2),
        callbacks=[Pointers()],
        executable=executable,
    )
    limits = limits_of(task, schedule_timeout_s=seat.schedule_timeout_s, hang_timeout_s=seat.hang_timeout_s)
    monitor = GroupMonitor(task.recipe.world_size, limits, time.monotonic(), _INQUIRY)
    fit = fit_of(order)
    fit.start()
    return _Followed(
        task=task, seat=seat, backstage=backstage, kind=kind, board=order.board, monitor=monitor, fit=fit
    )


@dataclass(slots=True, kw_only=True)
class _Followed:
    """An attempt while its ``fit`` goes on."""

    task: Task
    seat: AttemptSeat
    backstage: DriverActors
    # What the forkservers for the next attempt load for; None: no more of them are needed.
    kind: LoadedFor | None
    board: Any
    monitor: GroupMonitor
    fit: Fit
    verdict: Failure | None = None
    judged_s: float = 0.0
    stop_request: StopRequest | None = None
    next_look_s: float = 0.0
    # When to look next at what is prepared for the next attempt; None: nothing is.
    prepare_s: float | None = None
    nodes_beside: tuple[str, ...] = ()
    is_assembled: bool = False
    # The names of the ranks' nodes.
    nodes: tuple[str, ...] = ()

    def hear(self, listen: Callable[[RunEvent | Heartbeat], None]) -> None:
        for name, post in ray.get(self.board.take.remote(), timeout=_BOARD_TIMEOUT_S):
            # Workers of an earlier attempt may still post, which is ignored.
            if name == self.fit.name:
                self._take(post, listen)

    def judge(self) -> None:
        """Ends an attempt that cannot go on, once every rank with something to report has reported."""
        self._look_for_nodes()
        now = time.monotonic()
        if self.verdict is None and (failure := self.monitor.verdict(now)):
            self.verdict, self.judged_s = self.monitor.with_step(failure), now
            self.board.condemn.remote(self.fit.name)
        if self.verdict is None:
            return
        if not self._keeps_memory or self.monitor.have_left(self.verdict, self.judged_s, now):
            self.fit.condemn()

    def pass_on(self, stop_request: StopRequest | None) -> Cancelled | Failed | None:
        """Passes on a stop request, also one that a draining node makes necessary.

        Ranks that are not there yet cannot follow: then the result is how the attempt has ended.
        """
        stop_request = stronger(stop_request, self._drain())
        if stop_request is None or stop_request == self.stop_request:
            return None
        self.stop_request = stop_request
        self.board.request_stop.remote(self.fit.name, stop_request)
        if self.monitor.ready:
            return None
        return withdrawn(stop_request, tuple(node_names(self.seat.group, self.monitor.node_ids)))

    def prepare(self) -> None:
        """Prepares processes for the next attempt, once this one has loaded all it needs; not if it ends
        soon.
        """
        now = time.monotonic()
        if self.prepare_s is None or now < self.prepare_s or self.verdict is not None:
            return
        self.prepare_s = None
        ready = self.monitor.ready.get(0)
        is_worth_it = self.monitor.left_s(self.task.num_steps) > _WORTH_PARENTS_S
        if ready and self.monitor.node_ids and self.seat.keeps_spares and is_worth_it:
            # A failed preparation must not end an attempt that goes well.
            with suppress(RayError):
                if not self._prepares(ready.threads):
                    self.prepare_s = now + _PREPARATION_INTERVAL_S

    def _prepares(self, threads: str) -> bool:
        """Whether that is all; if not, it must be called again."""
        forkserver, used = self.seat.forkserver_that_fits, self.monitor.node_ids
        if forkserver is None and self.kind is None:
            return True
        if self.kind is None:
            executable = forkserver.executable() if forkserver else None
        elif not self.nodes_beside:
            self.nodes_beside = nodes_beside(self.seat.claim, self.seat.group, used)
            self.backstage.parents.keep(self.kind, threads, self.nodes_beside)
            return False
        else:
            executable = self.backstage.parents.command()
        if executable is None:
            return self.kind is None
        most = max(Counter(used).values())
        wanted = dict.fromkeys(self.nodes_beside or used, most)
        ranks: dict[str, list[int]] = {}
        for rank, ready in self.monitor.ready.items():
            ranks.setdefault(used[rank], []).append(ready.pid)
        return self.backstage.ahead.keep(environments(executable, self.seat.environment), wanted, ranks)

    def outcome(self) -> Completed | Failed:
        self.fit.close()
        if self.fit.error is not None or self.verdict is not None:
            return self._failed()
        checkpoint = self.fit.result.checkpoint
        return Completed(pointer=pointed_at(checkpoint) if checkpoint else None)

    @property
    def _keeps_memory(self) -> bool:
        return self.task.saving is not None and self.task.saving.memory is not None

    def _look_for_nodes(self) -> None:
        """A rank whose node is gone tells nothing, and the controller ends at the first error it sees."""
        unheard = self.monitor.unheard() if self.verdict is None else ()
        if not unheard or not self.monitor.node_ids:
            return
        gone = lost_nodes({self.monitor.node_ids[rank] for rank in unheard})
        for rank in unheard:
            if (is_preempted := gone.get(self.monitor.node_ids[rank])) is not None:
                self.monitor.hear(lost_with_node(rank, is_preempted=is_preempted), time.monotonic())

    def _drain(self) -> StopRequest | None:
        """A request to move on if a node of the attempt drains: workers must leave the node before its
        deadline. Once made, the request stays.
        """
        if self.stop_request is not None or time.monotonic() < self.next_look_s:
            return self.stop_request
        self.next_look_s = time.monotonic() + _DRAIN_INTERVAL_S
        leaving = draining(self.monitor.node_ids)
        names = node_names(self.seat.group, leaving)
        return (
            StopRequest(aim="move on", why=f"draining: {', '.join(dict.fromkeys(names))}")
            if leaving
            else None
        )

    def _take(self, post: Post, listen: Callable[[RunEvent | Heartbeat], None]) -> None:
        match post:
            case _ if isinstance(post, RunEvent):
                if isinstance(post, Resumption):
                    self.prepare_s = time.monotonic() + _SETTLED_S
                listen(post)
            case _:
                self.monitor.hear(post, time.monotonic())
                if isinstance(post, Assembled):
                    self.is_assembled = True
                    self.nodes = tuple(node_names(self.seat.group, post.node_ids))
                    self.backstage.parents.proven()
                if isinstance(post, Heartbeat):
                    listen(replace(post, node=self.nodes[post.rank]) if self.nodes else post)

    def _failed(self) -> Failed:
        told = self.verdict or self.monitor.failure() or self._untold(self.fit.error)
        failure = self.monitor.with_step(told)
        nodes = node_names(self.seat.group, self.monitor.node_ids)
        blamed = [nodes[rank] for rank in self.monitor.held_against(failure) if rank < len(nodes)]
        failure = replace(failure, nodes=tuple(dict.fromkeys(blamed)))
        lost = next((self.monitor.lost.get(rank) for rank in failure.ranks), None)
        return Failed(failure=failure, cause=cause_of(failure, lost), nodes=tuple(dict.fromkeys(nodes)))

    def _untold(self, error: Exception | None) -> Failure:
        """The failure that no rank could report."""
        if not is_not_placed(error):
            return untold(error)
        asked = f"asked {self.seat.group.name} for {self.seat.claim.describe()}"
        reason = f"not placed within {self.seat.schedule_timeout_s:g} s: {asked}"
        return Failure(status="unschedulable", reason=reason)


def _remains(node_id: str, ready: Ready) -> Postmortem | None:
    return on_node(node_id, examine, ready.logs)


def _stacks(standing: Sequence[tuple[str, Ready]]) -> tuple[str, ...]:
    """The stacks of the first few stalled ranks. A process that was stopped cannot answer."""
    found = []
    for node_id, ready in standing[:_MOST_STACKS]:
        told = on_node(node_id, stacks, ready.pid, ready.stacks, timeout_s=_STACKS_TIMEOUT_S)
        found += [f"rank {ready.rank}: {line}" for line in told or ("tells of no stack",)]
        if told is None:
            # The node does not answer: asking for more stacks would only take time.
            break
    return tuple(found)


_INQUIRY = Inquiry(remains=_remains, last_lines=_stacks, unmet=did_not_meet, broken_ways=broken_ways)
