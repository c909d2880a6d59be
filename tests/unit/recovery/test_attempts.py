"""What a driver asks of whoever carries out its attempts; no Ray, no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import pytest

from checkpointing.errors import Fenced
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Load
from checkpointing.stores.contract import Buffer, StoreError, Unavailable
from checkpointing.stores.memory import MemoryStore
from cluster.inventory import Inventory, Vendor, WorkerGroup
from jobs.alerts.rules import Alarm, Alarms
from jobs.commandline.usage_error import Occupied
from jobs.execution.causes import Cause
from jobs.execution.executor import AttemptOrder, MakeTask
from jobs.execution.messages import Event, Heartbeat, Session, SessionLimits, WayRate
from jobs.execution.outcomes import (
    Cancelled,
    Completed,
    Failed,
    GivenUp,
    Outcome,
    Setback,
    StoreAway,
    Unmendable,
    crashed,
)
from jobs.gauges.run_gauges import RunGauges
from jobs.recovery.loop import RunEnd
from jobs.recovery.resizing import Resizing
from jobs.run_progress.run_view import RunDisplay
from jobs.runs.attempts import Driver, work
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.run_checkpoints import Checkpoint
from jobs.spec_schema.run_spec import RunSpec
from jobs.sweeps.grid import Cell
from jobs.training.task.events import Progress, RunEvent
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task
from reporting.long_runs.summarising import long_run
from tests.unit.builders import group
from tests.unit.recovery.test_loop import task

STEP = Progress(
    step=1, num_steps=2, loss=1.0, tokens_per_s=1.0, durable_step=None, durable_s=None,
    num_failed_saves=0, num_skipped_saves=0,
)  # fmt: skip
STOP = StopRequest(aim="stop", why="Ctrl-C")


def no_one(_stop_request: StopRequest) -> None:
    raise AssertionError("nobody is to be stopped")


def failed(cause: Cause) -> Failed:
    return crashed(f"boom: {cause}", cause)


AWAY = StoreAway(reason="memory: away")


class Forgetful(MemoryStore):
    """Takes no part before ``num_refusals`` were refused."""

    def __init__(self, num_refusals: int) -> None:
        super().__init__()
        self.num_refusals = num_refusals

    def create(self, name: str, data: Buffer) -> None:
        if "/parts/" in name and self.num_refusals:
            self.num_refusals -= 1
            raise Unavailable("memory: away")
        super().create(name, data)


@dataclass
class Cluster:
    """Has room for one rank, and for one more beside it once that one has made a step."""

    stop: Callable[[StopRequest], None]
    orders: list[AttemptOrder] = field(default_factory=list)
    stop_requests: list[StopRequest | None] = field(default_factory=list)
    is_main_process: bool = True
    can_retry: bool = True

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def inventory(self) -> Inventory:
        raise NotImplementedError

    def can_run(self, cell: Cell) -> bool:
        raise NotImplementedError

    def describe(self) -> str:
        return "a cluster"

    def groups(self, planned: dict[str, WorkerGroup]) -> dict[str, WorkerGroup]:
        return planned

    def run(
        self, queues: dict[str, list[Session]], limits: SessionLimits, listen: Callable[[Event], None]
    ) -> None:
        raise NotImplementedError

    def sizes(self, wanted: Sequence[int], group: WorkerGroup) -> Sequence[int]:
        return wanted

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
        return 1

    def num_there(self, group: WorkerGroup) -> int:
        raise NotImplementedError

    def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> set[frozenset[str]]:
        raise NotImplementedError

    def way_rates(
        self, group: WorkerGroup, nodes: Sequence[str], is_wanted: Callable[[], bool]
    ) -> Sequence[WayRate]:
        raise NotImplementedError

    def attempt(
        self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
    ) -> Outcome:
        self.orders.append(order)
        make_task()
        self.stop_requests.append(order.stop_request())
        hear(STEP)
        self.stop_requests.append(order.stop_request())
        self.stop(STOP)
        self.stop_requests.append(order.stop_request())
        return Completed(pointer="pointer")


@dataclass
class Loading(Cluster):
    """Each attempt loads a generation, and then fails as the next of ``ends``, if there are any left.

    Where there is no room it fails before that.
    """

    ends: list[Setback] = field(default_factory=list)
    loads: list[Mapping[str, int]] = field(default_factory=list)
    repository: Repository = field(default_factory=lambda: Repository(MemoryStore(), "r"))
    kept_spares: list[bool] = field(default_factory=list)
    group: WorkerGroup = field(default_factory=group)

    def attempt(
        self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
    ) -> Outcome:
        if self.ends and self.ends[0].cause == "no room":
            return self.ends.pop(0)
        self.orders.append(order)
        self.kept_spares.append(order.keeps_spares)
        task = make_task()
        if not isinstance(task, Task):
            return task
        term = task.term
        self.loads.append(self.repository.view.loads)
        self.repository.append(Load(name="g"), term=term)
        return self.ends.pop(0) if self.ends else Completed()

    def drive(
        self, recovery: str = '"pause_s": 0', *, may_retry: bool = True, deadline_s: float = 600
    ) -> RunEnd | Setback:
        spec = f'{{"name": "r", "model": "llama-tiny", "steps": 2, "recovery": {{{recovery}}}}}'
        saves = Checkpoint(deadline_s=deadline_s)
        driver = Driver(
            executor=self,
            spec=RunSpec.model_validate_json(spec).model_copy(update={"checkpoint": saves}),
            groups=[self.group],
            repository=self.repository,
            make_task=lambda group, world_size, leased_s: self.lease(),
            display=RunDisplay("r", quiet=True, silent=True),
            gauges=RunGauges(None, 0.0),
            stop_signals=StopSignals(),
            may_retry=may_retry,
        )
        return work(driver)

    def lease(self) -> Task:
        return task(self.repository.take_over("driver"), MemoryStore())


@pytest.mark.parametrize(
    ("end", "held_against_it"),
    [
        (failed("store"), {}),
        (AWAY, {}),
        (failed("cluster away"), {}),
        (failed("host lost"), {}),
        (failed("host silent"), {}),
        (failed("partition"), {}),
        (failed("worker died"), {"g": 1}),
        (failed("error"), {"g": 1}),
    ],
    ids=str,
)
def test_what_the_store_or_a_host_ended_is_not_held_against_what_was_loaded(
    end: Setback, held_against_it: Mapping[str, int]
) -> None:
    cluster = Loading(stop=no_one, ends=[end])
    cluster.drive()
    assert cluster.loads == [{}, held_against_it]


def test_waiting_for_room_after_that_changes_nothing() -> None:
    cluster = Loading(stop=no_one, ends=[failed("host lost"), failed("no room"), failed("worker died")])
    cluster.ends.append(failed("no room"))
    cluster.drive()
    assert cluster.loads == [{}, {}, {"g": 1}]


def test_a_generation_that_can_never_be_read_is_not_forgiven_for_ever() -> None:
    cluster = Loading(stop=no_one, ends=[failed("store") for _ in range(7)])
    cluster.drive()
    assert [found.get("g", 0) for found in cluster.loads] == [0, 0, 0, 0, 0, 0, 1, 2]


def test_spares_wait_where_another_attempt_may_need_them_and_there_is_memory_for_them() -> None:
    cluster = Loading(stop=no_one, ends=[failed("worker died"), failed("out of memory")])
    cluster.drive()
    assert cluster.kept_spares == [True, True, False]


@pytest.mark.parametrize(
    ("recovery", "may_retry"), [('"spares": false', True), ('"max_attempts": 1', True), ("", False)]
)
def test_no_spares_wait_where_nobody_wants_them(recovery: str, may_retry: bool) -> None:
    cluster = Loading(stop=no_one)
    cluster.drive(recovery, may_retry=may_retry)
    assert cluster.kept_spares == [False]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_spares_wait_beside_devices_only_where_that_is_asked_for(vendor: Vendor) -> None:
    devices = group(vendor=vendor)
    kept = [Loading(stop=no_one, group=devices) for _ in range(3)]
    for cluster, recovery in zip(kept, ("", '"spares": true', '"spares": "devices"'), strict=True):
        cluster.drive(recovery)
    assert [cluster.kept_spares for cluster in kept] == [[False], [False], [True]]


def test_spares_for_devices_wait_beside_cpus_too() -> None:
    cluster = Loading(stop=no_one)
    cluster.drive('"spares": "devices"')
    assert cluster.kept_spares == [True]


@pytest.mark.parametrize("num_refusals", [1, 2])
def test_a_failure_that_the_store_did_not_take_at_once_is_in_the_report(num_refusals: int) -> None:
    """The last of them by nothing but the driver's end."""
    store = Forgetful(num_refusals)
    cluster = Loading(stop=no_one, ends=[failed("store")], repository=Repository(store, "r"))
    cluster.drive()
    found = long_run(store, "r")
    assert found is not None
    assert [kind for _, kind, _ in found.incidents][:2] == ["failure", "restart"]


@pytest.mark.parametrize(("tried_after_s", "without"), [(600.0, ("b",)), (0.0, ())])
def test_a_parted_node_is_tried_again_and_then_counts_as_room(
    tried_after_s: float, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parted(Loading):
        def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> set[frozenset[str]]:
            assert nodes == ["a", "b"]
            return set()

    monkeypatch.setattr("jobs.recovery.parted_nodes._FIRST_S", tried_after_s)
    end = failed("partition")
    end = replace(end, nodes=("a", "b"), failure=replace(end.failure, nodes=("b",)))
    cluster = Parted(stop=no_one, ends=[end])
    cluster.drive()
    assert [order.without for order in cluster.orders] == [(), without]


def test_a_run_that_is_given_up_rings() -> None:
    cluster = Loading(stop=no_one, ends=[failed("worker died")])
    assert isinstance(cluster.drive('"max_attempts": 1'), GivenUp)
    found = long_run(cluster.repository.store, "r")
    assert found is not None
    (text,) = [text for _, kind, text in found.incidents if kind == "alarm"]
    assert text.endswith("given up: 1 attempt without a newer checkpoint: boom: worker died")


def test_a_run_that_waits_for_its_next_attempt_or_for_room_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asking(Loading):
        def attempt(
            self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
        ) -> Outcome:
            order.stop_request()
            happened.append("asked")
            return super().attempt(order, make_task, hear)

    happened: list[str] = []

    def look(_alarms: Alarms, _now: float) -> list[Alarm]:
        happened.append("looked")
        return []

    monkeypatch.setattr(Alarms, "look", look)
    Asking(stop=no_one, ends=[failed("error")]).drive('"pause_s": 0.01')
    assert happened == ["looked", "asked", "looked", "looked", "asked"]


def test_a_pause_looks_whether_there_is_room_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look(_resizing: Resizing) -> None:
        looks.append("looked")

    monkeypatch.setattr(Resizing, "look_between", look)
    Loading(stop=no_one, ends=[failed("error")]).drive('"pause_s": 0.01')
    assert looks == ["looked"]


def test_the_alarms_hear_of_each_attempt_that_failed_also_of_one_that_could_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[float] = []
    monkeypatch.setattr(Alarms, "failed", lambda _alarms, now: heard.append(now))
    Loading(stop=no_one, ends=[AWAY, failed("error")]).drive('"pause_s": 0.01')
    assert len(heard) == 2


def test_the_ranks_wait_in_a_step_for_one_that_waits_for_memory_to_save() -> None:
    cluster = Loading(stop=no_one)
    cluster.drive(deadline_s=7200)
    assert cluster.orders[0].collective_timeout_s > 7200


class Apart(Cluster):
    """Has two devices, and no place for two ranks."""

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
        return 2

    def attempt(
        self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
    ) -> Outcome:
        self.orders.append(order)
        make_task()
        if order.world_size == 2:
            assert len(self.orders) == 1
            return failed("no room")
        return Completed(pointer="pointer")


def elastic(cluster: Cluster, stop_signals: StopSignals) -> RunEnd | Setback:
    spec = RunSpec.model_validate_json(
        '{"name": "r", "model": "llama-tiny", "steps": 2, "world_size": {"min": 1, "max": 2},'
        ' "elastic": {"wait_for_spare_s": 0, "grow_after_s": 0}, "recovery": {"pause_s": 0.01},'
        ' "environment": {"NCCL_DEBUG": "INFO"}, "deterministic": true}'
    )
    repository = Repository(MemoryStore(), "r")
    driver = Driver(
        executor=cluster,
        spec=spec,
        groups=[group(vendor="nvidia")],
        repository=repository,
        make_task=lambda group, world_size, leased_s: task(repository.take_over("driver"), MemoryStore()),
        display=RunDisplay("r", quiet=True, silent=True),
        gauges=RunGauges(None, 0.0),
        stop_signals=stop_signals,
        may_retry=True,
    )
    return work(driver)


def test_room_to_grow_makes_it_move_on_and_a_stop_is_stronger() -> None:
    stop_signals = StopSignals()
    cluster = Cluster(stop=stop_signals.hear)
    assert elastic(cluster, stop_signals) == Completed(pointer="pointer")
    (order,) = cluster.orders
    assert order.world_size == 1
    assert (order.environment["NCCL_DEBUG"], order.environment["NCCL_ALGO"]) == ("INFO", "Ring")
    assert cluster.stop_requests == [None, StopRequest(aim="move on", why="there is room for 2 ranks"), STOP]


def test_a_parted_node_is_room_to_grow_while_the_run_goes_on_once_it_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Parted(Cluster):
        def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
            asked.append(tuple(without))
            return 1

        def unreached(self, group: WorkerGroup, nodes: Sequence[str]) -> set[frozenset[str]]:
            return set()

        def attempt(
            self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
        ) -> Outcome:
            if self.orders:
                monkeypatch.setattr("jobs.recovery.parted_nodes._FIRST_S", 0.0)
                return super().attempt(order, make_task, hear)
            self.orders.append(order)
            make_task()
            return parted

    monkeypatch.setattr("jobs.recovery.parted_nodes._LOOK_EVERY_S", 0.0)
    asked: list[tuple[str, ...]] = []
    parted = failed("partition")
    parted = replace(parted, nodes=("a", "b"), failure=replace(parted.failure, nodes=("b",)))
    stop_signals = StopSignals()
    elastic(Parted(stop=stop_signals.hear), stop_signals)
    # Before the first attempt, before the second one, and while that one goes on.
    assert [without for without, _ in groupby(asked)] == [(), ("b",), ()]


def test_a_size_that_had_no_place_is_followed_by_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.recovery.resizing._SETTLE_S", 0.0)
    cluster = Apart(stop=no_one)
    assert elastic(cluster, StopSignals()) == Completed(pointer="pointer")
    assert [order.world_size for order in cluster.orders] == [2, 1]


@pytest.mark.parametrize(
    "error",
    [
        Fenced("another has it"),
        Occupied(["r: another driver is at work on it"]),
        StoreError("s3: no such bucket"),
    ],
)
def test_what_another_attempt_can_t_mend_ends_the_run_at_once(error: Exception) -> None:
    class Refused(Loading):
        def lease(self) -> Task:
            raise error

    cluster = Refused(stop=no_one)
    assert cluster.drive() == Unmendable(error=error)
    assert len(cluster.orders) == 1


def test_a_store_that_is_away_when_an_attempt_wants_its_lease_is_waited_for() -> None:
    class Away(Loading):
        def lease(self) -> Task:
            if len(self.orders) == 1:
                raise Unavailable("memory: away")
            return super().lease()

    cluster = Away(stop=no_one)
    assert cluster.drive('"pause_s": 0') == Completed()
    assert len(cluster.orders) == 2


def test_who_wishes_it_to_stop_while_it_waits_for_a_spare_is_heard() -> None:
    class Full(Cluster):
        def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
            stop_signals.hear(STOP)
            return 1

    stop_signals = StopSignals()
    assert elastic(Full(stop=no_one), stop_signals) == Cancelled(stop_request=STOP)


def test_peers_that_share_an_attempt_leave_it_to_others_what_follows() -> None:
    end = failed("worker died")
    cluster = Loading(stop=no_one, ends=[end], can_retry=False)
    assert cluster.drive() == end
    assert len(cluster.orders) == 1


def test_who_is_not_to_retry_gives_up_after_one_attempt() -> None:
    cluster = Loading(stop=no_one, ends=[failed("worker died")])
    assert isinstance(cluster.drive(may_retry=False), GivenUp)
    assert len(cluster.orders) == 1
