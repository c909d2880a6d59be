"""A run whose spec names several groups: in which of them each attempt runs; no Ray, no torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.log.history import Load
from checkpointing.stores.memory import MemoryStore
from cluster.inventory import ClusterError, WorkerGroup
from jobs.execution.causes import Cause
from jobs.execution.executor import AttemptOrder, MakeTask
from jobs.execution.messages import Heartbeat
from jobs.execution.outcomes import Completed, GivenUp, Outcome, Setback, Unmendable
from jobs.gauges.run_gauges import RunGauges
from jobs.recovery.journal import open_journal
from jobs.recovery.loop import RunEnd
from jobs.recovery.policy import FailedAttempt, GiveUp, Policy, Retry, RollBack, next_group, next_move
from jobs.run_progress.run_view import RunDisplay
from jobs.runs.attempts import Driver, work
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.events import RunEvent
from jobs.training.task.task import Task
from tests.unit.builders import group
from tests.unit.recovery.test_attempts import Cluster, failed, no_one
from tests.unit.recovery.test_loop import task
from tests.unit.recovery.test_policy import ending, row

POLICY = Policy()
BOTH = ("nvidia", "amd")


def turn(
    name: str, *causes: Cause, after: Sequence[FailedAttempt] = (), **more: object
) -> list[FailedAttempt]:
    """What came before, and then failures in one group."""
    history = list(after)
    for cause in causes:
        history.append(ending(len(history) + 1, cause, group=name, **more))
    return history


def full(name: str, after: Sequence[FailedAttempt] = (), cause: Cause = "no room") -> list[FailedAttempt]:
    return turn(name, cause, after=after, is_full=True)


def then(history: list[FailedAttempt]) -> str:
    return next_group(history, POLICY, BOTH)


def test_a_run_begins_in_the_first_group_and_stays_there_while_it_may_go_on() -> None:
    assert then([]) == "nvidia"
    assert then(turn("nvidia", "worker died", "hang", "preempted", "store", "no room")) == "nvidia"


def test_a_group_without_room_is_left_at_once_and_both_are_waited_for_in_turn() -> None:
    first = full("nvidia")
    assert next_move(first, POLICY, groups=BOTH) == Retry(after_s=0, group="amd")
    second = full("amd", first)
    assert next_move(second, POLICY, groups=BOTH) == Retry(after_s=20, group="nvidia")
    third = full("nvidia", second)
    assert next_move(third, POLICY, groups=BOTH) == Retry(after_s=40, group="amd")


def test_room_that_no_group_has_for_hours_ends_the_run() -> None:
    history: list[FailedAttempt] = []
    for hour in range(8):
        one = ending(hour + 1, "no room", group=BOTH[hour % 2], is_full=True)
        history.append(replace(one, ended_s=3600.0 * hour))
    assert next_move(history, POLICY, groups=BOTH) == GiveUp(reason="there was no room for 7.0 h")


def test_a_run_stays_where_it_is_although_the_first_group_may_have_room_again() -> None:
    history = turn("amd", "worker died", after=full("nvidia"))
    assert then(history) == "amd"
    assert then(full("amd", history)) == "nvidia"


def test_what_gives_up_a_run_with_one_group_moves_one_with_two() -> None:
    history = turn("nvidia", *["error"] * 3)
    assert next_move(row(*["error"] * 3), POLICY) == GiveUp(reason="3 errors without a newer checkpoint")
    assert next_move(history, POLICY, groups=BOTH) == Retry(after_s=0, group="amd")
    same = turn("nvidia", "error", "error", step=7)
    assert next_move(same, POLICY, groups=BOTH) == Retry(after_s=0, group="amd")


def test_a_run_is_given_up_once_no_group_gets_on() -> None:
    history = turn("amd", "error", "error", after=turn("nvidia", *["error"] * 3))
    assert next_move(history, POLICY, groups=BOTH) == Retry(after_s=10, group="amd")
    history = turn("amd", "error", after=history)
    assert next_move(history, POLICY, groups=BOTH) == GiveUp(reason="3 errors without a newer checkpoint")


def test_a_group_that_failed_is_tried_again_only_after_progress_elsewhere() -> None:
    history = turn("nvidia", *["error"] * 3)
    assert then(full("amd", history)) == "amd"
    history = turn("amd", "worker died", after=history, durable_step=9)
    assert then(full("amd", history)) == "nvidia"


def test_a_loss_that_goes_wrong_again_and_again_goes_back_and_moves() -> None:
    history = turn("nvidia", *["invalid loss"] * 4)
    assert next_move(history, POLICY, groups=BOTH) == RollBack(after_s=0, num_generations=3, group="amd")


@pytest.mark.parametrize("cause", ["store", "cluster away"])
def test_what_no_group_is_at_fault_for_moves_nothing(cause: Cause) -> None:
    history = [replace(ending(term, cause, group="nvidia"), ended_s=3600.0 * term) for term in range(1, 9)]
    assert then(history) == "nvidia"
    assert isinstance(next_move(history, POLICY, groups=BOTH), GiveUp)


def test_a_bound_of_all_failures_together_holds_for_all_groups_together() -> None:
    once = replace(POLICY, max_attempts=1)
    assert isinstance(next_move(full("nvidia"), once, groups=BOTH), GiveUp)


def test_deaths_of_the_driver_are_no_fault_of_a_group() -> None:
    history = turn("", *["driver died"] * 9)
    assert then(history) == "nvidia"
    history = turn("nvidia", "worker died", after=history)
    assert next_move(history, POLICY, groups=BOTH) == Retry(after_s=0, group="amd")
    history = turn("amd", "worker died", after=history)
    assert isinstance(next_move(history, POLICY, groups=BOTH), GiveUp)


def test_a_single_group_and_none_are_as_before() -> None:
    history = turn("nvidia", "no room", is_full=True)
    assert next_move(history, POLICY, groups=("amd",)) == Retry(after_s=10, group="amd")
    assert next_move(history, POLICY) == Retry(after_s=10)
    assert next_group([], POLICY, ("amd",)) == "amd"


@dataclass
class Fleet(Cluster):
    """Two groups. Each attempt in one of them ends as the next of its ``ends``, or well. Room is there for
    ``free`` ranks, and so many devices ``are_there``.
    """

    ends: dict[str, list[Outcome]] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(BOTH, 4))
    are_there: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(BOTH, 4))
    repository: Repository = field(default_factory=lambda: Repository(MemoryStore(), "r"))
    asked: list[str] = field(default_factory=list)
    loads: list[Mapping[str, int]] = field(default_factory=list)

    def room(self, group: WorkerGroup, without: Sequence[str]) -> int:
        self.asked.append(group.name)
        return self.free[group.name]

    def num_there(self, group: WorkerGroup) -> int:
        return self.are_there[group.name]

    def attempt(
        self, order: AttemptOrder, make_task: MakeTask, hear: Callable[[RunEvent | Heartbeat], None]
    ) -> Outcome:
        self.orders.append(order)
        left = self.ends.get(order.group.name, [])
        end = left.pop(0) if left else Completed()
        # Whoever finds no room at a first start takes no lease.
        if not isinstance(end, Unmendable):
            make_task()
            self.loads.append(self.repository.view.loads)
            self.repository.append(Load(name="g"), term=self.repository.view.term)
        return end

    def drive(self, sizes: str = "4", schedule_timeout_s: float = 300) -> RunEnd | Setback:
        spec = (
            f'{{"name": "r", "model": "llama-tiny", "steps": 2, "world_size": {sizes},'
            ' "group": ["nvidia", "amd"], "recovery": {"pause_s": 0},'
            ' "elastic": {"wait_for_spare_s": 0, "grow_after_s": 0}}'
        )
        driver = Driver(
            executor=self,
            spec=RunSpec.model_validate_json(spec),
            groups=[group("nvidia", (4,), vendor="nvidia"), group("amd", (4,), vendor="amd")],
            repository=self.repository,
            make_task=lambda group, world_size, leased_s: self.lease(group),
            display=RunDisplay("r", quiet=True, silent=False),
            gauges=RunGauges(None, 0.0),
            stop_signals=StopSignals(),
            may_retry=True,
        )
        return work(driver)

    def lease(self, group: WorkerGroup) -> Task:
        return replace(task(self.repository.take_over("driver"), MemoryStore()), group=group.name)

    @property
    def turns(self) -> list[tuple[str, int]]:
        return [(order.group.name, order.world_size) for order in self.orders]


def test_a_group_that_keeps_failing_is_left_for_the_other_one(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("error")] * 9})
    assert fleet.drive() == Completed()
    assert [name for name, _ in fleet.turns] == ["nvidia", "nvidia", "amd"]
    assert "trying again in 0 s from the beginning, in group amd" in capsys.readouterr().err


def test_each_attempt_has_its_own_groups_settings() -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("error")] * 2})
    fleet.drive()
    assert [order.group.vendor for order in fleet.orders] == ["nvidia", "nvidia", "amd"]
    assert all(("NCCL_DEBUG" in order.environment) is False for order in fleet.orders)


def test_a_size_without_a_place_is_made_smaller_before_another_group_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.recovery.resizing._SETTLE_S", 0.0)
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("no room")] * 3})
    assert fleet.drive('{"min": 1, "max": 4}') == Completed()
    assert fleet.turns == [("nvidia", 4), ("nvidia", 2), ("nvidia", 1), ("amd", 4)]


def test_a_run_moves_on_at_once_when_its_group_is_drained() -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("preempted")]}, are_there={"nvidia": 0, "amd": 4})
    assert fleet.drive() == Completed()
    assert [name for name, _ in fleet.turns] == ["nvidia", "amd"]


def test_a_group_of_which_one_node_is_drained_is_kept_while_the_rest_is_enough() -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("preempted")]}, are_there={"nvidia": 3, "amd": 4})
    assert fleet.drive('{"min": 2, "max": 4}') == Completed()
    assert [name for name, _ in fleet.turns] == ["nvidia", "nvidia"]


def test_a_run_that_never_ran_begins_where_there_is_room(capsys: pytest.CaptureFixture[str]) -> None:
    away = Unmendable(error=ClusterError("there is no node of group 'nvidia'"))
    fleet = Fleet(stop=no_one, ends={"nvidia": [away]})
    assert fleet.drive() == Completed()
    assert [name for name, _ in fleet.turns] == ["nvidia", "amd"]
    assert "there is no node of group 'nvidia'; tries group amd" in capsys.readouterr().err


def test_a_run_that_never_ran_says_of_each_group_why_it_can_t_begin() -> None:
    ends: dict[str, list[Outcome]] = {name: [Unmendable(error=ClusterError(f"no {name}"))] for name in BOTH}
    end = Fleet(stop=no_one, ends=ends).drive()
    assert isinstance(end, Unmendable)
    assert str(end.error) == "no nvidia; no amd"


def test_what_is_wrong_with_the_run_itself_is_tried_in_no_other_group() -> None:
    wrong = Unmendable(error=ValueError("the spec"))
    fleet = Fleet(stop=no_one, ends={"nvidia": [wrong]})
    assert fleet.drive() == wrong
    assert len(fleet.orders) == 1


def test_the_driver_that_follows_goes_on_in_the_same_group_and_one_started_by_hand_in_the_first() -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("error")] * 2, "amd": [failed("worker died")]})
    fleet.ends["amd"].append(Unmendable(error=ValueError("its driver dies")))
    fleet.drive()
    assert [name for name, _ in fleet.turns] == ["nvidia", "nvidia", "amd", "amd"]
    term = fleet.repository.take_over("a driver that dies")
    told = {"attempt": term, "group": "amd"}
    fleet.repository.store.put("runs/r/status.json", json.dumps(told).encode())
    history = open_journal(fleet.repository).history
    assert [one.group for one in history] == ["nvidia", "nvidia", "amd", "amd"]
    assert fleet.drive() == Completed()
    assert fleet.turns[-1][0] == "amd"
    fleet.drive()
    assert fleet.turns[-1][0] == "nvidia"


def test_a_run_that_no_group_can_carry_is_given_up() -> None:
    fleet = Fleet(stop=no_one, ends={name: [failed("error")] * 9 for name in BOTH})
    assert isinstance(fleet.drive(), GivenUp)
    assert [name for name, _ in fleet.turns] == ["nvidia"] * 2 + ["amd"] * 2


def test_room_to_grow_is_looked_for_in_the_group_where_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.recovery.resizing._SETTLE_S", 0.0)
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("no room")]}, free={"nvidia": 1, "amd": 4})
    assert fleet.drive('{"min": 1, "max": 4}') == Completed()
    assert fleet.turns == [("nvidia", 1), ("amd", 4)]
    assert fleet.asked[-1] == "amd"


def test_a_group_that_computes_otherwise_is_left_for_good_and_the_old_one_waited_for() -> None:
    history = turn("amd", "hand-over", after=full("nvidia"))
    assert next_move(history, POLICY, groups=BOTH) == Retry(after_s=0, group="nvidia")
    history = full("nvidia", turn("nvidia", "worker died", after=history, durable_step=9))
    assert next_move(history, POLICY, groups=BOTH) == Retry(after_s=10, group="nvidia")


def test_a_run_is_given_up_once_one_group_computes_otherwise_and_the_other_fails() -> None:
    history = turn("nvidia", "error", "error", "error", after=turn("amd", "hand-over"))
    assert next_move(history, POLICY, groups=BOTH) == GiveUp(reason="3 errors without a newer checkpoint")
    history = turn("amd", "hand-over", after=turn("nvidia", "error", "error", "error"))
    reason = "it computes other losses than the group that saved the checkpoint"
    assert next_move(history, POLICY, groups=BOTH) == GiveUp(reason=reason)


def test_a_refused_hand_over_is_not_held_against_the_checkpoint() -> None:
    fleet = Fleet(stop=no_one, ends={"nvidia": [failed("preempted")], "amd": [failed("hand-over")]})
    fleet.are_there = {"nvidia": 0, "amd": 4}
    assert fleet.drive() == Completed()
    assert [name for name, _ in fleet.turns] == ["nvidia", "amd", "nvidia"]
    # That of the first attempt, which did not say how its load went.
    assert fleet.loads == [{}, {"g": 1}, {}]
