"""What a driver asks Ray for beside a training: workers that start ahead, and answers from nodes."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import pytest
import ray

from cluster.local_ray.private_ray import ray_for_driver
from cluster.local_ray.variables import variables
from cluster.ray_internals import environment_of_workers, workers_at
from jobs.launch.forkserver.ahead import Environments, WorkersAhead
from jobs.launch.ray_train import on_nodes
from jobs.launch.ray_train.trainer import environments, train_settings
from tests.live.runs.test_train import wait_until

PATIENCE_S = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with variables(train_settings(30)), ray_for_driver():
        yield


class Told:
    """An actor that starts another one, as Ray Train's controller does."""

    def pids(self, environment: Mapping[str, Any]) -> tuple[int, int]:
        worker = ray.remote(num_cpus=1, runtime_env=environment_of_workers(environment))(Told).remote()
        return psutil.Process().pid, ray.get(worker.pid.remote())

    def pid(self) -> int:
        return psutil.Process().pid


def pids(told: Environments) -> tuple[int, int]:
    controller = ray.remote(num_cpus=0, runtime_env=dict(told.controller))(Told).remote()
    found: tuple[int, int] = ray.get(controller.pids.remote(told.workers), timeout=PATIENCE_S)
    ray.kill(controller)
    return found


def waiting() -> set[int]:
    """The workers of this driver's Ray that are no actors."""
    idle = [child for child in psutil.Process().children(recursive=True) if child.name() == "ray::IDLE"]
    return {child.pid for child in idle}


def keep(ahead: WorkersAhead, told: Environments, workers: int, ranks: Sequence[int] = ()) -> set[int]:
    """Those that wait then, once that is so many."""
    here = ray.get_runtime_context().get_node_id()
    wait_until(lambda: ahead.keep(told, {here: workers}, {here: ranks}), PATIENCE_S)
    wait_until(lambda: len(waiting()) == 2 + workers, PATIENCE_S)
    return waiting()


def test_the_next_attempt_s_processes_are_there_already_and_all_end_when_they_are_of_no_use(
    cluster: None,
) -> None:
    ahead, told = WorkersAhead(), environments(None, {"OMP_NUM_THREADS": "1"})
    first = keep(ahead, told, workers=1)
    # Whatever is there stays.
    assert keep(ahead, told, workers=1) == first
    used = pids(told)
    assert len({*used}) == 2 and first >= {*used}
    # Of the controller's the one for its barriers is left, which this one did not start.
    wait_until(lambda: waiting() == first - {*used}, PATIENCE_S)
    before, other = keep(ahead, told, workers=1), environments(None, {"OMP_NUM_THREADS": "2"})
    _, worker = pids(other)
    assert worker not in before
    ahead.clear()
    wait_until(lambda: not waiting(), PATIENCE_S)


def test_whoever_was_not_taken_waits_still_and_none_piles_up(cluster: None) -> None:
    """As where an attempt was started in another way than was foreseen, or has ended before."""
    ahead, told = WorkersAhead(), environments(None, {"OMP_NUM_THREADS": "4"})
    keep(ahead, told, workers=2)
    for _ in range(2):
        pids(environments(None, {"OMP_NUM_THREADS": "5"}))
        keep(ahead, told, workers=2)
    # While one is a rank another waits in its place.
    controller = ray.remote(num_cpus=0, runtime_env=dict(told.controller))(Told).remote()
    ray.get(controller.pid.remote(), timeout=PATIENCE_S)
    worker = ray.remote(num_cpus=1, runtime_env=environment_of_workers(told.workers))(Told).remote()
    rank = ray.get(worker.pid.remote(), timeout=PATIENCE_S)
    assert rank not in keep(ahead, told, workers=2, ranks=[rank])
    ray.kill(worker)
    ray.kill(controller)
    ahead.clear()
    wait_until(lambda: not waiting(), PATIENCE_S)


def test_none_starts_any_more_once_they_are_to_end(cluster: None) -> None:
    ahead, told = WorkersAhead(), environments(None, {"OMP_NUM_THREADS": "6"})
    here = ray.get_runtime_context().get_node_id()
    wait_until(lambda: ahead.keep(told, {here: 30}, {}), PATIENCE_S)
    ahead.clear()
    wait_until(lambda: not asking(), PATIENCE_S)
    wait_until(lambda: not waiting(), PATIENCE_S)


def asking() -> bool:
    return any(thread.name == "workers ahead" for thread in threading.enumerate())


def test_what_is_lost_or_asked_in_vain_is_started_when_it_is_needed(cluster: None) -> None:
    ahead, told = WorkersAhead(), environments(None, {"OMP_NUM_THREADS": "3"})
    ahead.keep(told, {"no such node": 1}, {})
    ahead.clear()
    for pid in keep(ahead, told, workers=1):
        psutil.Process(pid).kill()
    # Whoever asks within milliseconds may get one that has just died, as of any process of Ray's.
    time.sleep(2.0)
    assert len({*pids(told)}) == 2
    ahead.clear()


def test_no_answer_is_waited_for_from_a_node_that_is_gone(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray waits for it, where the question came before Ray knew."""
    (here,) = ray.nodes()

    def long() -> None:
        time.sleep(3600.0)

    looks = iter([[here], [{**here, "Alive": False}]])
    monkeypatch.setattr(on_nodes.ray, "nodes", lambda: next(looks))
    assert on_nodes.on_each_node([here["NodeID"]], long, timeout_s=3600.0) == {}


def test_a_raylet_is_never_asked_through_a_proxy(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hear the cluster's token; Ray's own calls pass it by too."""
    (node,) = ray.nodes()
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert workers_at(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
