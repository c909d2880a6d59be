"""The executor over Ray: finds the nodes that are there, and waits for room on them.

Ray is not imported before there is something to ask or to run.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from cluster.environment import is_on_cpus
from cluster.inventory import (
    LOCAL_GROUP,
    ClusterError,
    Inventory,
    WorkerGroup,
    excluding,
    node_names,
    unknown_nodes,
)
from cluster.placement import Refused
from cluster.ray_internals import raylet_socket, variables_of_workers
from cluster.this_machine import this_machine
from jobs.execution.executor import AttemptOrder, Hear, Listen, MakeTask, Queues
from jobs.execution.messages import SessionLimits, Upcoming, WayRate
from jobs.execution.outcomes import Cancelled, Failed, LastWord, Outcome, Unmendable, withdrawn
from jobs.execution.resources import Claim, claim_of
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

if TYPE_CHECKING:
    from jobs.launch.forkserver.beside_driver import DriverForkserver
    from jobs.launch.ray_train.driver_actors import DriverActors

# A group without room is looked at again this often.
_ROOM_INTERVAL_S = 0.5
_LOADING_INTERVAL_S = 0.05
_LONGEST_BY_ID_S = 60.0
_log = logging.getLogger(__name__)


def as_promised(planned: WorkerGroup, live: WorkerGroup | None) -> WorkerGroup:
    """The live group if there is one, otherwise the planned one.

    Results describe a group as its plan did. So a live group raises ``ClusterError`` if only one of the two
    is simulated.
    """
    if live is not None and live.simulated != planned.simulated:
        is_what = {True: "simulated", False: "real"}
        raise ClusterError(
            f"group {planned.name!r}: its devices are {is_what[live.simulated]}, but the cluster file "
            f"promises {is_what[planned.simulated]} ones; plan on the file that the cluster was started from"
        )
    return live or planned


def candidates(order: AttemptOrder, live: Inventory) -> Iterator[WorkerGroup]:
    """The groups to try, best first: the live one without the failing nodes, then with them, then the planned
    one. Nodes that are requested by a label may still come.
    """
    for inventory in (excluding(live, order.without), live):
        if group := inventory.group(order.group.name):
            yield as_promised(order.group, group)
    if order.may_wait and order.group.name != LOCAL_GROUP:
        yield order.group


def schedule_timeout_s(order: AttemptOrder) -> float:
    """How long the attempt may wait to be placed; shorter if its nodes are requested by id.

    Nodes without a label are requested by id. A node that comes back has a new id for Ray, which only the
    next attempt requests.
    """
    is_by_id = order.may_wait and order.group.name == LOCAL_GROUP
    return min(order.schedule_timeout_s, _LONGEST_BY_ID_S) if is_by_id else order.schedule_timeout_s


class LeftOut:
    """The nodes ``names``, on which nothing may run. Logs once for each node that does not exist."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._missed: set[str] = set()

    def of(self, live: Inventory) -> Inventory:
        for name in unknown_nodes(live, self._names):
            if name not in self._missed:
                # The node may be away for good reason, which must not stop the start.
                _log.warning("%s has no node %r: nothing is left out for it", live.source, name)
                self._missed.add(name)
        return excluding(live, self._names)


class KnownNodes:
    """The nodes that were seen of each group, by their names: who is away can be named."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def note(self, live: Inventory) -> None:
        for group in live.groups:
            self._seen.setdefault(group.name, set()).update(_names(group))

    def with_away(self, reason: str, group: str, live: Inventory) -> str:
        """The reason why nothing could be placed, with the nodes of ``group`` that are not there any more."""
        away = sorted(self._seen.get(group, set()) - _names(live.group(group)))
        return f"{reason}; away since they were seen: {', '.join(away)}" if away else reason


def _names(group: WorkerGroup | None) -> set[str]:
    return {node.name for node in group.all_nodes if node.name} if group else set()


def needed_all_the_same(group: WorkerGroup, without: Sequence[str]) -> list[str]:
    """The nodes of the group that were to be left out."""
    (named,) = excluding(Inventory(groups=(group,), source=""), without).groups
    return node_names(group, [node.node_id for node in group.nodes if node not in named.nodes])


class RayExecutor:
    """The executor on the cluster that ``RAY_ADDRESS`` names, or on a private Ray, started when it is needed.

    Nothing is planned or placed on the nodes ``excluded``.
    """

    def __init__(
        self, *, verbose: bool, share_nodes: bool, spread: bool = False, excluded: Sequence[str] = ()
    ) -> None:
        self._verbose = verbose
        self._share_nodes, self._spread = share_nodes, spread
        self._excluded = excluded
        self._left_out = LeftOut(excluded)
        self._known = KnownNodes()
        self._connections = ExitStack()
        self._live: Inventory | None = None
        self._backstage: DriverActors | None = None
        self._forkserver: DriverForkserver | None = None
        self.is_main_process = self.can_retry = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._forkserver is not None:
            self._forkserver.end()
        self._connections.close()

    def inventory(self) -> Inventory:
        return self._connect() if os.environ.get("RAY_ADDRESS") else this_machine()

    def can_run(self, world_size: int) -> bool:
        return True

    def describe(self) -> str:
        return "any world size"

    def starts(self) -> str:
        if self._live is not None:
            return ""
        address = os.environ.get("RAY_ADDRESS")
        return f"connecting to the Ray cluster at {address}" if address else "starting Ray on this machine"

    def groups(
        self, planned: dict[str, WorkerGroup], upcoming: Upcoming | None = None
    ) -> dict[str, WorkerGroup]:
        # A group that only a cluster file names may still come up: the autoscaler starts nodes on request.
        live = self._connect(None if os.environ.get("RAY_ADDRESS") else upcoming)
        return {name: as_promised(group, live.group(name)) for name, group in planned.items()}

    def run(self, queues: Queues, limits: SessionLimits, listen: Listen) -> None:
        from jobs.launch.ray_train.cells import launch

        launch(
            queues,
            limits,
            listen,
            share_nodes=self._share_nodes,
            spread=self._spread,
            forkserver=self._forkserver,
        )

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        # No node ever joins a private Ray: more than fits on this machine will never fit.
        is_cluster = bool(os.environ.get("RAY_ADDRESS"))
        fits = tuple(size for size in wanted if size <= group.num_devices)
        return wanted if is_cluster or not fits else fits[-1:]

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int | None:
        self._connect()
        from cluster.live import free_devices, live_inventory

        try:
            live = excluding(live_inventory(may_be_empty=True), (*self._excluded, *without))
            found = live.group(group.name)
            return free_devices(found) if found else 0
        except Exception:
            # Ray's layers raise many types; all of them mean that the cluster does not answer now.
            return None

    def num_there(self, group: WorkerGroup) -> int | None:
        try:
            found = self._look(may_be_empty=True).group(group.name)
        except Exception:
            # Ray's layers raise many types; all of them mean that the cluster does not answer now.
            return None
        return found.num_devices if found else 0

    def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> Collection[frozenset[str]] | None:
        if (names := self._ids(group, nodes)) is None:
            return None
        from jobs.launch.ray_train.node_links import all_broken_ways

        ways = all_broken_ways([*names])
        return (
            None if ways is None else {frozenset((names[way.node_id], names[way.other_id])) for way in ways}
        )

    def way_rates(
        self, group: WorkerGroup, nodes: Sequence[str], is_wanted: Callable[[], bool]
    ) -> Sequence[WayRate] | None:
        if (names := self._ids(group, nodes)) is None:
            return None
        from jobs.launch.ray_train.link_rates import link_rates

        try:
            rates = link_rates([*names], is_wanted)
        except Exception:
            # Ray's layers raise many types; all of them mean that the cluster does not answer now.
            return None
        by_place = [*names.values()]
        return (
            None
            if rates is None
            else [
                WayRate(sender=by_place[one], receiver=by_place[other], bytes_per_s=rate)
                for one, other, rate in rates
            ]
        )

    def _ids(self, group: WorkerGroup, nodes: Sequence[str]) -> dict[str, str] | None:
        """These nodes' names by their ids; None unless all of them are there."""
        try:
            found = self._look(may_be_empty=True).group(group.name)
        except Exception:
            # Ray's layers raise many types; all of them mean that the cluster does not answer now.
            return None
        ids = [node.node_id for node in found.nodes] if found else []
        names = dict(zip(ids, node_names(found, ids), strict=True)) if found else {}
        asked = {node_id: name for node_id, name in names.items() if name in nodes}
        return asked if len(asked) == len(nodes) else None

    def attempt(self, order: AttemptOrder, make_task: MakeTask, hear: Hear) -> Outcome:
        try:
            self._connect(self._upcoming(order))
            room = self._room_for(order)
        except ClusterError as error:
            return Unmendable(error=error)
        if not isinstance(room, tuple):
            return room
        if stop_request := self._loading_ends(order):
            return withdrawn(stop_request)
        group, claim = room
        from jobs.launch.ray_train.attempts import AttemptSeat, attempt
        from jobs.launch.ray_train.driver_actors import DriverActors

        seat = AttemptSeat(
            group=group,
            claim=claim,
            schedule_timeout_s=schedule_timeout_s(order),
            collective_timeout_s=order.collective_timeout_s,
            hang_timeout_s=order.hang_timeout_s,
            environment=order.environment,
            keeps_spares=order.keeps_spares,
            forkserver=self._forkserver,
        )
        if self._backstage is None:
            self._backstage = self._connections.enter_context(DriverActors())
        task, last = make_task(), LastWord(hear)
        if not isinstance(task, Task):
            return task
        outcome = last.judge(attempt(task, seat, self._backstage, last.hear, order.stop_request))
        return self._naming_away(outcome, group.name) if isinstance(outcome, Failed) else outcome

    def _naming_away(self, failed: Failed, group: str) -> Failed:
        if failed.cause != "no room":
            return failed
        try:
            reason = self._known.with_away(failed.reason, group, self._look(may_be_empty=True))
        except Exception:
            # Ray's layers raise many types; all of them mean that the cluster does not answer now.
            return failed
        return replace(failed, failure=replace(failed.failure, reason=reason))

    def _upcoming(self, order: AttemptOrder) -> Upcoming | None:
        """What an attempt on a private Ray will load."""
        is_elsewhere = bool(os.environ.get("RAY_ADDRESS")) or not is_on_cpus(order.group)
        if order.strategy is None or not order.keeps_spares or is_elsewhere:
            return None
        return Upcoming(environment=order.environment, strategies=(order.strategy,), work="attempt")

    def _loading_ends(self, order: AttemptOrder) -> StopRequest | None:
        """Waits for what the first attempt is forked from; returns a stop request that comes before."""
        while self._forkserver is not None and self._forkserver.is_loading():
            if stop_request := order.stop_request():
                return stop_request
            time.sleep(_LOADING_INTERVAL_S)
        return None

    def _room_for(self, order: AttemptOrder) -> tuple[WorkerGroup, Claim] | Cancelled | Failed:
        """The group and the claim to use, once there is room. Waits as long as an attempt may wait to be
        placed.

        Raises ``ClusterError`` if waiting is of no use.
        """
        deadline = time.monotonic() + (order.schedule_timeout_s if order.may_wait else 0.0)
        while True:
            if stop_request := order.stop_request():
                return withdrawn(stop_request)
            answer = self._claim(order)
            if not isinstance(answer, Refused):
                return answer
            if not order.may_wait:
                raise ClusterError(answer.reason)
            if time.monotonic() >= deadline:
                failure = Failure(status="unschedulable", reason=answer.reason)
                return Failed(failure=failure, cause="no room")
            time.sleep(_ROOM_INTERVAL_S)

    def _claim(self, order: AttemptOrder) -> tuple[WorkerGroup, Claim] | Refused:
        """The claim without the nodes that keep failing, or with them if nothing else fits."""
        name, live = order.group.name, self._look(may_be_empty=order.may_wait)
        refused = Refused(reason=f"there is no node of group {name!r}")
        for group in candidates(order, live):
            answer = claim_of(group, order.world_size, share_nodes=self._share_nodes, spread=self._spread)
            if not isinstance(answer, Refused):
                if group == live.group(name) and (needed := needed_all_the_same(group, order.without)):
                    _log.warning("there is no room without %s: used all the same", ", ".join(needed))
                return group, answer
            refused = answer
        return Refused(reason=self._known.with_away(refused.reason, name, live))

    def _look(self, *, may_be_empty: bool) -> Inventory:
        """The live inventory now; that of the first attempt may be outdated."""
        self._connect()
        from cluster.live import live_inventory

        self._live = self._left_out.of(live_inventory(may_be_empty=may_be_empty))
        self._known.note(self._live)
        return self._live

    def _connect(self, upcoming: Upcoming | None = None) -> Inventory:
        if self._live is None:
            from cluster.local_ray.private_ray import ray_for_driver

            self._forkserver = forkserver = _forkserver_for(upcoming) if upcoming else None
            self._connections.enter_context(
                ray_for_driver(verbose=self._verbose, aside=forkserver.start if forkserver else _nothing)
            )
            from cluster.live import live_inventory

            if forkserver is not None:
                forkserver.listen_beside(raylet_socket(), variables_of_workers())
            self._live = self._left_out.of(live_inventory())
            self._known.note(self._live)
        return self._live


def _forkserver_for(upcoming: Upcoming) -> "DriverForkserver":
    from jobs.launch.forkserver.beside_driver import DriverForkserver

    return DriverForkserver(upcoming)


def _nothing() -> None:
    return None
