"""What a driver keeps between attempts may be gone or stand still when it is needed."""

import os
import signal
from collections.abc import Iterator

import pytest
import ray

from cluster.local_ray.private_ray import ray_for_driver
from jobs.launch.ray_train.driver_actors import DriverActors


@pytest.fixture(scope="module")
def backstage() -> Iterator[DriverActors]:
    with ray_for_driver(), DriverActors() as found:
        yield found


@pytest.mark.parametrize("what_happens", [signal.SIGKILL, signal.SIGSTOP])
def test_a_board_that_does_not_answer_is_replaced(
    backstage: DriverActors, what_happens: signal.Signals
) -> None:
    board = backstage.board()
    ray.get(board.__ray_ready__.remote(), timeout=120)
    assert backstage.board() is board
    os.kill(ray.get(board.__ray_call__.remote(lambda _: os.getpid()), timeout=60), what_happens)
    other = backstage.board()
    assert other is not board
    assert ray.get(other.take.remote(), timeout=60) == []
