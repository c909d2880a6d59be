"""What is made of failures that no rank could tell of: Ray's own errors, without a Ray."""

import errno
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2.api.exceptions import ControllerError

from checkpointing.errors import Fenced, NothingToResume
from checkpointing.stores.contract import Unavailable
from cluster.inventory import ClusterError, Inventory, Node, WorkerGroup
from jobs.execution.board import Assembled, Raised
from jobs.execution.causes import Cause, cause_of
from jobs.execution.executor import AttemptOrder
from jobs.execution.hang_detection import limits_of
from jobs.execution.messages import Upcoming
from jobs.execution.monitor import GroupMonitor, Inquiry
from jobs.execution.outcomes import Cancelled, Completed, Failed, Outcome, StoreAway, Unmendable
from jobs.execution.resources import Claim
from jobs.launch import ray_executor
from jobs.launch.forkserver.beside_driver import DriverForkserver
from jobs.launch.inline_executor import InlineExecutor
from jobs.launch.ray_executor import RayExecutor
from jobs.launch.ray_train import attempts
from jobs.launch.ray_train.attempts import AttemptSeat, attempt
from jobs.launch.ray_train.driver_actors import DriverActors
from jobs.launch.ray_train.fit import Fit
from jobs.launch.ray_train.ray_errors import is_lost_at_start, is_not_placed, lost, untold
from jobs.launch.torchrun import LauncherPlace
from jobs.training.task.measurement import Failure
from jobs.training.task.stop_request import StopRequest
from tests.unit.builders import group, inventory
from tests.unit.recovery.test_notifier import task_in

AWAY = StoreAway(reason="memory: away")
NOT_PLACED = Failed(failure=Failure(status="unschedulable", reason="not placed within 5 s"), cause="no room")
STOP, MOVE_ON = StopRequest(aim="stop", why="Ctrl-C"), StopRequest(aim="move on", why="draining: n1")


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (WorkerGroupStartupFailedError("At least one of the worker actors failed to initialize."), True),
        (RayActorError(), True),
        (
            WorkerGroupStartupFailedError("The actor died because of an error raised in its creation task"),
            False,
        ),
        (WorkerGroupStartupTimeoutError(2), False),
        (ValueError("of ours"), False),
    ],
)
def test_a_worker_that_dies_while_it_is_set_up_is_a_lost_one(error: Exception, is_lost: bool) -> None:
    assert is_lost_at_start(error) is is_lost


def test_a_driver_whose_disk_is_full_waits_as_for_a_cluster_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/ray")

    monkeypatch.setattr(attempts, "scratch", full)
    claim = Claim(num_workers=1, resources={"CPU": 1.0}, selector={}, strategy="PACK")
    nowhere = WorkerGroup(name="local", vendor="cpu", nodes=())
    seat = AttemptSeat(
        group=nowhere, claim=claim, schedule_timeout_s=1, collective_timeout_s=1, hang_timeout_s=1
    )
    outcome = attempt(task_in("/nowhere"), seat, DriverActors(), lambda _: None, lambda: None)
    assert isinstance(outcome, Failed)
    assert outcome.cause == "cluster away"
    assert "No space left on device" in outcome.reason


@pytest.mark.parametrize(
    ("error", "reason", "cause"),
    [
        (None, "the workers ended without a word of it", "error"),
        (ControllerError(RayActorError()), "a worker was lost before it could begin", "worker died"),
        (RayActorError(), "Ray Train's controller has died", "worker died"),
        (ControllerError(ValueError("odd\nlines")), "ValueError: odd", "error"),
    ],
)
def test_what_no_rank_could_tell_is_told_by_rays_error(
    error: Exception | None, reason: str, cause: Cause
) -> None:
    failure = untold(error)
    assert (failure.reason, cause_of(failure)) == (reason, cause)


def test_only_that_there_was_no_room_in_time_is_not_placed() -> None:
    assert is_not_placed(ControllerError(WorkerGroupStartupTimeoutError(2)))
    assert not any(map(is_not_placed, (None, RayActorError(), ControllerError(RayActorError()))))


@pytest.fixture
def ray_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Ray executor to which this is all that there is."""

    def executor(live: Inventory) -> RayExecutor:
        monkeypatch.setattr("cluster.live.live_inventory", lambda **_: live)
        monkeypatch.setattr("cluster.local_ray.private_ray.ray_for_driver", lambda **_: nullcontext())
        return RayExecutor(verbose=False, share_nodes=True)

    return executor


def order(*, may_wait: bool, stop_request: StopRequest | None = None) -> AttemptOrder:
    return AttemptOrder(
        group=group("local"),
        world_size=2,
        environment={},
        schedule_timeout_s=0.0,
        collective_timeout_s=60.0,
        may_wait=may_wait,
        stop_request=lambda: stop_request,
    )


def never() -> StoreAway:
    raise AssertionError("there is no place for it")


def test_without_a_place_an_attempt_has_no_room_or_is_the_users_to_mend(ray_with: Any) -> None:
    with ray_with(inventory()) as executor:
        waited = executor.attempt(order(may_wait=True), never, print)
        at_once = executor.attempt(order(may_wait=False), never, print)
    reason = "there is no node of group 'local'"
    assert isinstance(at_once, Unmendable) and isinstance(at_once.error, ClusterError)
    assert str(at_once.error) == reason
    assert isinstance(waited, Failed)
    assert (waited.cause, waited.reason) == ("no room", reason)


def named(*names: str) -> Inventory:
    nodes = tuple(Node(node_id=f"id of {name}", name=name, num_devices=1, num_cpus=1) for name in names)
    return inventory(WorkerGroup(name="local", vendor="cpu", nodes=nodes))


def test_a_node_that_was_seen_and_is_away_is_named_where_nothing_can_be_placed(
    ray_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_with(named("host-1", "host-2")) as executor:
        executor.inventory()
        monkeypatch.setattr(attempts, "attempt", lambda *_: NOT_PLACED)
        never_placed = executor.attempt(order(may_wait=True), lambda: task_in("/nowhere"), print)
        for live in (named("host-1"), named()):
            monkeypatch.setattr("cluster.live.live_inventory", lambda live=live, **_: live)
            outcome = executor.attempt(order(may_wait=True), never, print)
            away = "host-1, host-2" if not live.groups[0].nodes else "host-2"
            assert outcome.reason.endswith(f"; away since they were seen: {away}")
    assert never_placed == NOT_PLACED


def test_a_node_that_goes_while_an_attempt_is_placed_is_named(
    ray_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt_without_host_2(*_: object) -> Failed:
        monkeypatch.setattr("cluster.live.live_inventory", lambda **_: named("host-1"))
        return NOT_PLACED

    with ray_with(named("host-1", "host-2")) as executor:
        monkeypatch.setattr(attempts, "attempt", attempt_without_host_2)
        outcome = executor.attempt(order(may_wait=True), lambda: task_in("/nowhere"), print)
    assert outcome.reason == "not placed within 5 s; away since they were seen: host-2"


@pytest.mark.parametrize("names", [("host-1", "host-2", "host-3"), ("host-1", "host-2")])
def test_a_node_that_was_to_be_left_out_and_is_needed_is_told(
    ray_with: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(attempts, "attempt", lambda *_: NOT_PLACED)
    with ray_with(named(*names)) as executor:
        executor.attempt(
            replace(order(may_wait=True), without=("host-2",)), lambda: task_in("/nowhere"), print
        )
    told = [] if "host-3" in names else ["there is no room without host-2: used all the same"]
    assert caplog.messages == told


@pytest.mark.parametrize("is_preempted", [False, True])
def test_a_rank_whose_node_is_gone_is_not_waited_for_once_its_peer_has_told(
    is_preempted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Train's controller ends at the first error that it sees, and tells of no other one."""
    condemned: list[str] = []
    limits = limits_of(task_in("/nowhere"), schedule_timeout_s=60, hang_timeout_s=60)
    followed = attempts._Followed(
        task=task_in("/nowhere"),
        seat=cast("AttemptSeat", None),
        backstage=DriverActors(),
        kind=None,
        board=SimpleNamespace(condemn=SimpleNamespace(remote=condemned.append)),
        monitor=GroupMonitor(2, limits, time.monotonic(), cast("Inquiry", None)),
        fit=cast("Fit", SimpleNamespace(name="one", condemn=lambda: condemned.append("its workers"))),
    )
    asked: list[set[str]] = []

    def lost_nodes(node_ids: set[str]) -> dict[str, bool]:
        asked.append(node_ids)
        return {"b": is_preempted} if len(asked) > 1 else {}

    monkeypatch.setattr(attempts, "lost_nodes", lost_nodes)
    followed.monitor.hear(Assembled(node_ids=("a", "b")), time.monotonic())
    followed.judge()
    assert asked == []
    # Who has failed by itself says nothing of anybody's node.
    own = Failure(status="crash", reason="ValueError: of ours", ranks=(0,))
    of_its_own = replace(followed, monitor=GroupMonitor(2, limits, time.monotonic(), cast("Inquiry", None)))
    of_its_own.monitor.hear(Assembled(node_ids=("a", "b")), time.monotonic())
    of_its_own.monitor.hear(Raised(run_id="r", rank=0, failure=own), time.monotonic())
    of_its_own.judge()
    assert asked == []
    closed = Failure(status="crash", reason="RuntimeError: Connection closed by peer", ranks=(0,))
    followed.monitor.hear(Raised(run_id="r", rank=0, failure=closed), time.monotonic())
    followed.judge()
    assert (asked, condemned) == ([{"b"}], [])
    followed.judge()
    assert followed.verdict is not None
    assert (followed.verdict.ranks, condemned) == ((1,), ["one", "its workers"])
    assert followed.monitor.lost[1].is_preempted is is_preempted
    assert followed.monitor.lost[1].is_of_node


def test_a_node_behind_a_cut_link_is_not_called_dead() -> None:
    error = RayActorError(error_msg="The actor died because its node has died. Node Id: 1234")
    found = lost(3, error)
    assert (found.reason, found.is_of_node) == ("its node is not reached any more", True)


@pytest.mark.parametrize("stop_request", [STOP, MOVE_ON])
def test_what_is_wished_before_there_is_a_place_ends_the_attempt(
    ray_with: Any, stop_request: StopRequest
) -> None:
    with ray_with(inventory()) as executor:
        outcome = executor.attempt(order(may_wait=True, stop_request=stop_request), never, print)
    if stop_request.aim == "stop":
        assert outcome == Cancelled(stop_request=stop_request)
    else:
        assert (outcome.cause, outcome.reason) == ("preempted", stop_request.why)


def test_an_attempt_that_gets_no_lease_is_not_begun(ray_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "attempt", never)
    with ray_with(inventory(group("local"))) as executor:
        assert executor.attempt(order(may_wait=False), lambda: AWAY, print) is AWAY


class Forkserver:
    """Stands in for one that loads as often as it is asked."""

    def __init__(self, upcoming: Upcoming | None = None, *, asked_for: int = 0) -> None:
        self.upcoming, self.left, self.is_ended = upcoming, asked_for, False

    start = listen_beside = lambda *_: None

    def fits(self, environment: Mapping[str, str]) -> bool:
        return self.upcoming is not None and environment == self.upcoming.environment

    def is_loading(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def end(self) -> None:
        self.is_ended = True


@pytest.fixture
def forkservers(monkeypatch: pytest.MonkeyPatch) -> list[Forkserver]:
    """Those that an executor has started."""
    started: list[Forkserver] = []

    def start(upcoming: Upcoming) -> Forkserver:
        started.append(Forkserver(upcoming, asked_for=2))
        return started[-1]

    monkeypatch.setattr(ray_executor, "_forkserver_for", start)
    monkeypatch.setattr(ray_executor, "raylet_socket", str)
    monkeypatch.setattr(ray_executor, "variables_of_workers", dict)
    return started


def test_what_an_attempt_is_forked_from_has_loaded_before_it_begins(
    ray_with: Any, forkservers: list[Forkserver]
) -> None:
    left: list[int] = []

    def begin() -> StoreAway:
        left.extend(forkserver.left for forkserver in forkservers)
        return AWAY

    forks = replace(order(may_wait=False), keeps_spares=True, strategy="zero1", environment={"A": "1"})
    with ray_with(inventory(group("local"))) as executor:
        assert executor.attempt(forks, begin, print) is AWAY
        assert executor.attempt(forks, begin, print) is AWAY
    (forkserver,) = forkservers
    assert forkserver.upcoming == Upcoming(environment={"A": "1"}, strategies=("zero1",), work="attempt")
    assert left[0] == -1, "it was asked until it had loaded"
    assert forkserver.is_ended


def test_a_stop_is_heard_while_it_loads(ray_with: Any, forkservers: list[Forkserver]) -> None:
    said = iter([None, None, STOP])
    forks = replace(order(may_wait=False), keeps_spares=True, strategy="ddp", stop_request=lambda: next(said))
    with ray_with(inventory(group("local"))) as executor:
        assert executor.attempt(forks, never, print) == Cancelled(stop_request=STOP)


@pytest.mark.parametrize("why", ["no strategy", "no spares", "devices", "a cluster"])
def test_an_attempt_loads_for_itself_where_nothing_may_wait_beside_it(
    why: str, ray_with: Any, forkservers: list[Forkserver], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "a cluster":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    asked = replace(
        order(may_wait=False),
        group=group("local") if why != "devices" else replace(group("local"), vendor="amd"),
        keeps_spares=why != "no spares",
        strategy=None if why == "no strategy" else "ddp",
    )
    with ray_with(inventory(group("local"))) as executor:
        assert executor.attempt(asked, lambda: AWAY, print) is AWAY
    assert forkservers == []


@pytest.mark.parametrize(
    ("is_assembled", "keeps_spares", "is_ended"),
    [(True, True, False), (False, True, True), (True, False, True)],
)
def test_what_brought_no_workers_or_may_not_stay_forks_none_for_the_next_attempt(
    is_assembled: bool, keeps_spares: bool, is_ended: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over = SimpleNamespace(
        fit=SimpleNamespace(is_going=bool),
        hear=lambda _: None,
        outcome=lambda: Completed(pointer=None),
        is_assembled=is_assembled,
    )
    monkeypatch.setattr(attempts, "_begin", lambda *_: over)
    monkeypatch.setattr(attempts, "scratch", lambda: nullcontext(str(tmp_path)))
    forkserver = Forkserver()
    seat = AttemptSeat(
        group=group("local"),
        claim=Claim(num_workers=1, resources={"CPU": 1.0}, selector={}, strategy="PACK"),
        schedule_timeout_s=1,
        collective_timeout_s=1,
        keeps_spares=keeps_spares,
        forkserver=cast("DriverForkserver", forkserver),
    )
    outcome = attempt(task_in("/nowhere"), seat, DriverActors(), lambda _: None, lambda: None)
    assert outcome == Completed(pointer=None)
    assert forkserver.is_ended is is_ended


def test_an_attempt_in_this_process_is_of_its_size_and_ends_with_what_its_task_says() -> None:
    with InlineExecutor(LauncherPlace(rank=0, world_size=1, local_rank=0)) as executor:
        too_large = executor.attempt(order(may_wait=False), never, print)
        away = executor.attempt(replace(order(may_wait=False), world_size=1), lambda: AWAY, print)
    assert isinstance(too_large, Unmendable)
    assert str(too_large.error).startswith("world_size: 2, but this start is of world size 1")
    assert away == AWAY


@pytest.mark.parametrize("error", [NothingToResume("no such"), Fenced("another has it")])
def test_what_a_rank_in_this_process_can_not_mend_is_no_failure_to_retry(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_inline(error, monkeypatch) == Unmendable(error=error)


def test_what_else_a_rank_in_this_process_raises_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_inline(Unavailable("s3: gone"), monkeypatch) == StoreAway(reason="s3: gone")
    outcome = run_inline(ValueError("a bug"), monkeypatch)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.cause) == ("rank 0: ValueError: a bug", "error")


def run_inline(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("jobs.launch.inline.run", fails)
    with InlineExecutor(LauncherPlace(rank=0, world_size=1, local_rank=0)) as executor:
        return executor.attempt(
            replace(order(may_wait=False), world_size=1), lambda: task_in("/nowhere"), print
        )
