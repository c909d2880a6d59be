"""Who carries out an attempt, and what it asks for."""

import pytest

from cluster.inventory import Inventory, WorkerGroup, excluding
from jobs.execution.executor import AttemptOrder
from jobs.launch.choose import choose_executor
from jobs.launch.inline_executor import InlineExecutor
from jobs.launch.ray_executor import LeftOut, RayExecutor, candidates, schedule_timeout_s
from tests.unit.builders import group, inventory

NOBODY = Inventory(groups=(), source="the test's cluster")


def order(*, on: WorkerGroup, may_wait: bool = True, without: tuple[str, ...] = ()) -> AttemptOrder:
    return AttemptOrder(
        group=on,
        world_size=2,
        environment={},
        schedule_timeout_s=300.0,
        collective_timeout_s=60.0,
        without=without,
        may_wait=may_wait,
    )


def chosen(name: str | None) -> type:
    return type(choose_executor(name, verbose=False, share_nodes=True))


def test_it_is_ray_but_under_torchrun_the_processes_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert [chosen(None), chosen("ray"), chosen("inline")] == [RayExecutor, RayExecutor, InlineExecutor]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    assert [chosen(None), chosen("ray")] == [InlineExecutor, RayExecutor]


def test_nodes_that_keep_failing_are_done_without_as_long_as_there_is_room_elsewhere() -> None:
    there = inventory(group("a100", (2, 2)))
    found = list(candidates(order(on=group("a100"), may_wait=False, without=("a100-0",)), there))
    without = excluding(there, ("a100-0",)).group("a100")
    assert found == [without, there.group("a100")]


def test_of_a_node_to_leave_out_that_is_away_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut(("a100-0", "a100-9"))
    there = inventory(group("a100", (2, 2)))
    for live in (there, there, NOBODY, there):
        assert left_out.of(live) == excluding(live, ("a100-0",))
    assert caplog.messages == [
        "the test's cluster has no node 'a100-9': nothing is left out for it",
        "the test's cluster has no node 'a100-0': nothing is left out for it",
    ]


@pytest.mark.parametrize(
    ("name", "may_wait", "is_asked_for"),
    [("a100", True, True), ("a100", False, False), ("local", True, False)],
)
def test_what_has_a_label_is_asked_for_while_it_is_away_once_the_run_has_begun(
    name: str, may_wait: bool, is_asked_for: bool
) -> None:
    on = group(name)
    assert list(candidates(order(on=on, may_wait=may_wait), NOBODY)) == ([on] if is_asked_for else [])


@pytest.mark.parametrize(
    ("name", "may_wait", "expected"), [("local", True, 60), ("local", False, 300), ("a100", True, 300)]
)
def test_nodes_without_a_label_are_soon_asked_for_anew(name: str, may_wait: bool, expected: float) -> None:
    assert schedule_timeout_s(order(on=group(name), may_wait=may_wait)) == expected
