"""What a driver keeps between attempts may be gone or stand still when it is needed."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
import ray

from cluster.live import live_inventory
from cluster.local import ray_for_driver
from jobs.board import Board
from jobs.claims import Claim
from jobs.launch.backstage import Backstage
from jobs.launch.spares import Kind, Spares, Wanted, wanted_beside
from tests.live.commands import titled
from tests.live.test_train import wait_until

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def backstage() -> Iterator[Backstage]:
    with ray_for_driver(), Backstage() as found:
        yield found


@pytest.mark.parametrize("what_happens", [signal.SIGKILL, signal.SIGSTOP])
def test_a_board_that_does_not_answer_is_replaced(backstage: Backstage, what_happens: signal.Signals) -> None:
    board = backstage.board()
    assert backstage.board() is board
    os.kill(ray.get(board.__ray_call__.remote(lambda _: os.getpid()), timeout=60), what_happens)
    other = backstage.board()
    assert other is not board
    assert ray.get(other.take.remote(), timeout=60) == []


def test_a_node_without_room_gets_no_spares_unless_its_own_workers_take_it(backstage: Backstage) -> None:
    (group,) = live_inventory().groups
    (node,) = group.nodes
    claim = Claim(num_workers=1, resources={"CPU": 1.0}, selector={}, strategy="PACK")

    def nodes_for(*used: str) -> tuple[str, ...]:
        wanted = wanted_beside(claim, group, used, {}, "ddp")
        assert wanted is not None
        return wanted.node_ids

    assert nodes_for("elsewhere") == ("elsewhere", node.node_id)
    taken = ray.remote(num_cpus=node.num_cpus)(Board).remote()
    assert ray.get(taken.take.remote(), timeout=60) == []
    assert nodes_for("elsewhere") == ("elsewhere",)
    assert nodes_for(node.node_id) == (node.node_id,)
    ray.kill(taken)


def test_spares_wait_on_unless_they_were_taken(backstage: Backstage) -> None:
    node_id, spares = ray.get_runtime_context().get_node_id(), Spares()
    kind = Kind(resources={"CPU": 1.0}, environment={}, strategy="ddp")
    wanted = Wanted(node_ids=(node_id,), num_per_node=2, kind=kind)
    spares.keep(wanted)
    before = await_spares(2)
    lent = spares.lend()
    assert lent is not None
    (found,) = lent.take([node_id], kind.resources)
    assert found is not None
    taken = found[1].pid
    assert taken in before
    spares.take_back([node_id])
    spares.keep(wanted)
    after = await_spares(2, besides=taken)
    assert len(before & after) == 1
    assert psutil.pid_exists(taken), "it is a worker"
    spares.end_lent()
    wait_until(lambda: not psutil.pid_exists(taken), PATIENCE_S)
    assert await_spares(2) == after
    spares.clear()


def await_spares(num: int, besides: int | None = None) -> set[int]:
    found: set[int] = set()

    def are_there() -> bool:
        found.clear()
        found.update(child.pid for child in titled(os.getpid(), "ray::Spare"))
        return len(found - {besides}) == num

    wait_until(are_there, PATIENCE_S)
    return found - {besides}


def test_no_spare_waits_for_a_device(backstage: Backstage) -> None:
    (group,) = live_inventory().groups
    claim = Claim(num_workers=1, resources={"CPU": 1.0, "GPU": 1.0}, selector={}, strategy="PACK")
    assert wanted_beside(claim, group, ["elsewhere"], {}, "ddp") is None
