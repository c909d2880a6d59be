"""Runs sessions on worker groups, through Ray Train. Groups work side by side, a group's sessions one by one.

Each session is one ``fit()`` over all its jobs, in a thread of its own. Results do not travel through Ray
Train. Workers post them on a board, which the driver reads a few times a second. So a result is there as soon
as its run ends.

After a job that is not ok the whole worker group is ended: the peers of a failed rank may be stuck for good.
The remaining jobs go on in a new group.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from cluster.environment import is_on_cpus
from cluster.live import describe_free
from cluster.local_ray.variables import variables
from cluster.placement import Refused
from jobs.execution.board import Post, Ready
from jobs.execution.hang_detection import limits_of_jobs
from jobs.execution.messages import Event, Session, SessionLimits
from jobs.execution.monitor import GroupMonitor, Inquiry, did_not_join
from jobs.execution.resources import Claim, claim_of
from jobs.execution.session_jobs import SessionJobs
from jobs.launch.forkserver.beside_driver import DriverForkserver
from jobs.launch.ray_train.driver_actors import DriverActors
from jobs.launch.ray_train.fit import Fit, GroupOrder, abort, fit_of
from jobs.launch.ray_train.node_links import broken_ways
from jobs.launch.ray_train.on_nodes import on_node
from jobs.launch.ray_train.ray_errors import is_not_placed, reason_of
from jobs.launch.ray_train.trainer import scratch, train_settings
from jobs.training.health.postmortem import Postmortem, examine
from jobs.training.task.measurement import Failure

_POLL_INTERVAL_S = 0.25
# Ray's call below answers in milliseconds; this deadline is for a cluster that is breaking down.
_BOARD_TIMEOUT_S = 60.0
# A collective gives up by itself so long after the driver's limit for a cell.
_COLLECTIVE_MARGIN_S = 60.0


def launch(
    queues: Mapping[str, Iterable[Session | None]],
    limits: SessionLimits,
    listen: Callable[[Event], None],
    *,
    share_nodes: bool = False,
    spread: bool = False,
    forkserver: DriverForkserver | None = None,
) -> None:
    """Works off all queues; ``listen`` gets every event, in this thread.

    A queue is asked for its next session when the one before is over and ``listen`` has had all its events.
    None in a queue means that it is to be asked again soon.
    Call this from the main thread of a driver that is connected to Ray. Whatever ends it early (Ctrl-C, a
    raising ``listen``) is raised again after all its worker groups are ended.
    """
    with (
        variables(train_settings(limits.schedule_timeout_s)),
        scratch() as storage,
        DriverActors() as backstage,
    ):
        terms = _Terms(
            limits=limits,
            backstage=backstage,
            storage=storage,
            share_nodes=share_nodes,
            spread=spread,
            forkserver=forkserver,
        )
        lanes = [_Lane(sessions, terms) for sessions in queues.values()]
        try:
            while lanes := [lane for lane in lanes if lane.advance(listen)]:
                time.sleep(_POLL_INTERVAL_S)
                for name, post in terms.posts():
                    for lane in lanes:
                        lane.deliver(name, post, listen)
        finally:
            abort([fit for lane in lanes if (fit := lane.fit)])


@dataclass(slots=True, kw_only=True)
class _Terms:
    """What holds for every session. ``storage`` is a directory that Ray Train requires; it stays empty.

    The ``board`` is there from the first session on, so that it can be forked as its workers are.
    """

    limits: SessionLimits
    backstage: DriverActors
    storage: str
    share_nodes: bool
    spread: bool
    forkserver: DriverForkserver | None
    board: Any = None

    def board_for(self, executable: str | None) -> Any:
        if self.board is None:
            self.board = self.backstage.board(executable)
        return self.board

    def posts(self) -> list[tuple[str, Post]]:
        if self.board is None:
            return []
        taken: list[tuple[str, Post]] = ray.get(self.board.take.remote(), timeout=_BOARD_TIMEOUT_S)
        return taken

    def forkserver_for(self, session: Session) -> DriverForkserver | None:
        """The one from which the session's workers are forked; workers on devices never are."""
        forkserver = self.forkserver if is_on_cpus(session.group) else None
        return forkserver if forkserver and forkserver.fits(session.environment) else None


class _Lane:
    """One group's queue, with at most one worker group at a time."""

    def __init__(self, sessions: Iterable[Session | None], terms: _Terms) -> None:
        self._sessions = iter(sessions)
        self._terms = terms
        self._current: _Current | None = None
        self._waiting: Session | None = None

    @property
    def fit(self) -> Fit | None:
        return self._current.fit if self._current else None

    def advance(self, listen: Callable[[Event], None]) -> bool:
        """Judges the current session and starts the next one; False once all are done."""
        left, self._waiting = self._waiting, None
        if self._current is not None:
            if not self._current.is_over(listen):
                return True
            left, self._current = self._current.left, None
        try:
            session = left or next(self._sessions)
        except StopIteration:
            return False
        if session is not None:
            forkserver = self._terms.forkserver_for(session)
            if forkserver is not None and forkserver.is_loading():
                self._waiting = session
            else:
                self._current = _begin(session, self._terms)
        return True

    def deliver(self, name: str, post: Post, listen: Callable[[Event], None]) -> None:
        if self._current is not None and self._current.name == name:
            self._current.deliver(post, listen)


@dataclass(slots=True, kw_only=True)
class _Current:
    """A session that is running, or one that cannot be placed: then ``fit`` is None."""

    name: str
    session: Session
    terms: _Terms
    jobs: SessionJobs
    claim: Claim | Refused
    fit: Fit | None
    was_seen_to_end: bool = False

    @property
    def left(self) -> Session | None:
        left = self.jobs.left
        return replace(self.session, jobs=left) if left else None

    def deliver(self, post: Post, listen: Callable[[Event], None]) -> None:
        for event in self.jobs.hear(post, time.monotonic()):
            listen(event)

    def is_over(self, listen: Callable[[Event], None]) -> bool:
        for event in self.jobs.judge(time.monotonic()):
            listen(event)
        if self.fit is not None and self.jobs.is_condemned:
            self.fit.condemn()
        if self.fit is not None and self.fit.is_going():
            return False
        if not self.was_seen_to_end:
            # The group's last posts must be fetched before its silence counts.
            self.was_seen_to_end = True
            return False
        for event in self._last_events():
            listen(event)
        if self.fit is not None:
            self.fit.close()
        return True

    def _last_events(self) -> list[Event]:
        error = self.fit.error if self.fit else None
        match self.claim:
            case Refused(reason=reason):
                return self.jobs.refuse(Failure(status="unschedulable", reason=reason))
            case Claim() as claim if is_not_placed(error):
                return self.jobs.refuse(self._unplaced(claim))
        reason = reason_of(error) if error else "the worker group ended before its jobs did"
        return self.jobs.end(reason, time.monotonic())

    def _unplaced(self, claim: Claim) -> Failure:
        group = self.session.group
        asked = f"asked {group.name} for {claim.describe()}; {describe_free(group)}"
        reason = f"not placed within {self.terms.limits.schedule_timeout_s:g} s: {asked}"
        return Failure(status="unschedulable", reason=reason)


def _begin(session: Session, terms: _Terms) -> _Current:
    name = uuid.uuid4().hex
    limits = limits_of_jobs(session.jobs, terms.limits)
    monitor = GroupMonitor(session.world_size, limits, time.monotonic(), _INQUIRY)
    claim = claim_of(session.group, session.world_size, share_nodes=terms.share_nodes, spread=terms.spread)
    fit = _fit(name, session, claim, terms) if isinstance(claim, Claim) else None
    if fit is not None:
        fit.start()
    jobs = SessionJobs(session.jobs, monitor)
    return _Current(name=name, session=session, terms=terms, jobs=jobs, claim=claim, fit=fit)


def _fit(name: str, session: Session, claim: Claim, terms: _Terms) -> Fit:
    forkserver = terms.forkserver_for(session)
    executable = forkserver.executable() if forkserver else None
    order = GroupOrder(
        name=name,
        board=terms.board_for(executable),
        work=session.jobs,
        vendor=session.group.vendor,
        simulated=session.group.simulated,
        claim=claim,
        storage=terms.storage,
        environment=session.environment,
        collective_timeout_s=terms.limits.cell_timeout_s + _COLLECTIVE_MARGIN_S,
        executable=executable,
    )
    return fit_of(order)


def _remains(node_id: str, ready: Ready) -> Postmortem | None:
    return on_node(node_id, examine, ready.logs)


def _log_tail(standing: Sequence[tuple[str, Ready]]) -> tuple[str, ...]:
    remains = _remains(*standing[0])
    return remains.log_tail if remains else ()


_INQUIRY = Inquiry(remains=_remains, last_lines=_log_tail, unmet=did_not_join, broken_ways=broken_ways)
