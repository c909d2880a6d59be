"""What a driver keeps between attempts may be gone or stand still when it is needed."""

import os
import signal
from collections.abc import Iterator

import pytest
import ray

from cluster.live import live_inventory
from cluster.local import ray_for_driver
from jobs.board import Board
from jobs.claims import Claim
from jobs.launch.backstage import Backstage
from jobs.launch.spares import wanted_beside


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


def test_no_spare_waits_for_a_device(backstage: Backstage) -> None:
    (group,) = live_inventory().groups
    claim = Claim(num_workers=1, resources={"CPU": 1.0, "GPU": 1.0}, selector={}, strategy="PACK")
    assert wanted_beside(claim, group, ["elsewhere"], {}, "ddp") is None
