"""Sessions on a real private Ray, with real workers that are killed, stopped, starved and interrupted."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import psutil
import pytest
import ray

from cluster.inventory import WorkerGroup
from cluster.live import live_inventory
from cluster.local_ray.private_ray import private_ray
from cluster.ray_internals import raylet_socket, variables_of_workers
from jobs.execution.messages import Event, SessionLimits, Started, Upcoming
from jobs.launch.forkserver import beside_driver
from jobs.launch.forkserver.beside_driver import DriverForkserver
from jobs.launch.ray_train import cells
from jobs.training.task.measurement import Measurement, NoProfile, Profile
from jobs.training.task.search.largest_batch import BatchSearch
from tests.live.listening import ENDLESS, Listener, assert_all_capacity_returns, job, session, workers
from tests.live.pickled import packages_read

NUM_CPUS = 2
# Shared machines are slow to start processes; what is tested to be short is set short in its test.
LIMITS = SessionLimits(schedule_timeout_s=120, cell_timeout_s=300, hang_timeout_s=60)
Launch = Callable[..., None]


@pytest.fixture(scope="module")
def group() -> Iterator[WorkerGroup]:
    with private_ray(num_cpus=NUM_CPUS):
        (group,) = live_inventory().groups
        yield group


@pytest.fixture(scope="module")
def launch(group: WorkerGroup) -> Iterator[Launch]:
    """Forks the workers, as sweeps do. Else loading would take most of the time of these tests."""
    with (
        pytest.MonkeyPatch.context() as patch,
        DriverForkserver(Upcoming(environment=session(group).environment, strategies=("ddp",))) as forkserver,
    ):
        # However busy this machine is.
        patch.setattr(beside_driver, "_LOADING_S", 300.0)
        forkserver.start()
        forkserver.listen_beside(raylet_socket(), variables_of_workers())
        yield partial(cells.launch, forkserver=forkserver)


@pytest.fixture(autouse=True)
def _capacity_returns(group: WorkerGroup) -> Iterator[None]:
    """Whatever a test does to its workers, the next one finds the whole machine."""
    yield
    assert_all_capacity_returns(NUM_CPUS)


def test_sessions_of_each_world_size_follow_one_another(group: WorkerGroup, launch: Launch) -> None:
    alone = [job("a", group, world_size=1), job("b", group, world_size=1)]
    profiled = job("c", group, world_size=2, steps=3)
    together = [replace(profiled, window=replace(profiled.window, profile_steps=2))]
    listener = Listener()
    launch({group.name: [session(group, *alone), session(group, *together)]}, LIMITS, listener)
    assert listener.story() == ["start a", "ok a", "start b", "ok b", "start c", "ok c"]
    measured = listener.measurement("c")
    assert (measured.run_id, len(measured.ranks), len(measured.step_times_s)) == ("c", 2, 3)
    assert measured.environment.variables["OMP_NUM_THREADS"] == "1"
    assert isinstance(measured.profile, Profile) and measured.profile.trace
    assert listener.measurement("a").profile is None
    # The board and the driver would first load torch, for seconds in which nothing is heard.
    assert packages_read(measured) == {"cluster", "jobs"}


@pytest.mark.soak
def test_a_worker_that_is_killed_while_it_is_profiled_costs_only_the_profile(
    group: WorkerGroup,
    launch: Launch,
) -> None:
    listener = Listener(act=_kill_a_worker, act_in="profile")
    # Steps of some tenths of a second, so that heartbeats tell of them.
    slow = job("killed", group, world_size=2)
    slow = replace(
        slow, recipe=replace(slow.recipe, seq_len=2048), window=replace(slow.window, profile_steps=10)
    )
    launch({group.name: [session(group, slow, job("next", group, world_size=2))]}, LIMITS, listener)
    assert listener.story() == ["start killed", "ok killed", "start next", "ok next"]
    measured = listener.measurement("killed")
    assert (len(measured.step_times_s), len(measured.ranks)) == (2, 2)
    assert isinstance(measured.profile, NoProfile)
    assert measured.profile.reason.startswith("crash: ")


def test_a_killed_worker_costs_only_its_own_run(
    group: WorkerGroup, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray may take its time to notice a death that the killed one's peer sees at once.
    monkeypatch.setattr("jobs.execution.rank_failures.GRACE_S", 60.0)
    listener = Listener(act=_kill_a_worker)
    jobs = [job("killed", group, world_size=2, steps=ENDLESS), job("next", group, world_size=2)]
    launch({group.name: [session(group, *jobs)]}, LIMITS, listener)
    assert listener.story() == ["start killed", "crash killed", "start next", "ok next"]
    failure = listener.failure("killed")
    assert (failure.phase, len(failure.ranks)) == ("window", 1)
    assert failure.reason.startswith("its worker process has died: without a word")


def test_a_worker_that_crashes_names_its_signal_and_its_last_words(
    group: WorkerGroup, launch: Launch
) -> None:
    listener = Listener(act=_crash_a_worker)
    launch({group.name: [session(group, job("a", group, world_size=1, steps=ENDLESS))]}, LIMITS, listener)
    failure = listener.failure("a")
    assert (failure.status, failure.reason) == ("crash", "its worker process has died: SIGSEGV")
    assert "Fatal Python error: Segmentation fault" in failure.log_tail
    assert len(failure.log_tail) <= 20


def test_a_stopped_worker_is_a_hang_that_names_it(group: WorkerGroup, launch: Launch) -> None:
    listener = Listener(act=_stop_a_worker, act_at_ranks=2)
    limits = replace(LIMITS, hang_timeout_s=15)
    launch({group.name: [session(group, job("a", group, world_size=2, steps=ENDLESS))]}, limits, listener)
    failure = listener.failure("a")
    assert (failure.status, failure.phase, len(failure.ranks)) == ("hang", "window", 1)
    assert f"rank {failure.ranks[0]} is silent for 15 s, in window at step" in failure.reason


# It waits for twenty seconds; by default `test_hang_detection` shows the same on a clock of its own.
@pytest.mark.soak
def test_what_progresses_for_too_long_is_a_timeout(group: WorkerGroup, launch: Launch) -> None:
    listener = Listener()
    limits = replace(LIMITS, cell_timeout_s=20)
    launch({group.name: [session(group, job("a", group, world_size=1, steps=ENDLESS))]}, limits, listener)
    failure = listener.failure("a")
    assert failure.status == "timeout"
    assert "not done after 20 s" in failure.reason


@pytest.mark.soak
def test_what_every_rank_raises_is_one_failure_with_all_ranks(group: WorkerGroup, launch: Launch) -> None:
    elsewhere = replace(job("a", group, world_size=2), vendor="amd")
    listener = Listener()
    launch({group.name: [session(group, elsewhere)]}, LIMITS, listener)
    failure = listener.failure("a")
    assert (failure.status, failure.ranks, failure.phase) == ("device_mismatch", (0, 1), "setup")
    assert any("Traceback" in line for line in failure.log_tail)


@pytest.mark.soak
def test_a_search_on_two_ranks_goes_on_in_a_new_group_after_one_ran_out_of_memory(
    group: WorkerGroup, launch: Launch
) -> None:
    listener = Listener()
    small = job("a", group, world_size=2)
    asked = replace(
        small,
        recipe=replace(small.recipe, seq_len=64, grad_accum=64),
        memory_budget_bytes=150_000_000,
        search=BatchSearch(sequences=64, candidates=(1, 64), guess=64),
    )
    launch({group.name: [session(group, asked, job("b", group, world_size=2))]}, LIMITS, listener)
    assert listener.story() == ["start a", "start a", "ok a", "start b", "ok b"]
    search = listener.measurement("a").search
    assert search is not None
    assert (search.fitted, search.failed) == ((1,), (64,))


# By default a later cell of a sweep is compared with a fresh process: `test_sweep`.
@pytest.mark.soak
def test_workers_that_are_forked_compute_what_fresh_ones_do(group: WorkerGroup, launch: Launch) -> None:
    asked = session(group, *(job(name, group, world_size=2, steps=3) for name in "ab"))
    parents: list[set[int]] = []
    listeners = [_Onlooker(parents=parents) for _ in range(3)]
    for listener in listeners[:2]:
        launch({group.name: [asked]}, LIMITS, listener)
    cells.launch({group.name: [asked]}, LIMITS, listeners[2])
    # By the time that the second run of each begins.
    assert [listener.story() for listener in listeners] == 3 * [["start a", "ok a", "start b", "ok b"]]
    forked, again, fresh = parents
    assert forked == again != fresh
    # Of one step, whichever steps the windows have.
    losses = [[_reference(listener.measurement(name)) for name in "ab"] for listener in listeners]
    assert losses[0] == losses[1] == losses[2]
    # The controllers have asked no autoscaler for nodes, since none can join.
    with pytest.raises(ValueError, match="AutoscalingCoordinator"):
        ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")


def _reference(measured: Measurement) -> tuple[int | None, float | None]:
    return measured.reference_step, measured.reference_loss


@dataclass
class _Onlooker(Listener):
    """Also sees whose children the workers are."""

    parents: list[set[int]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, Started) and event.run_id == "b":
            self.parents.append({worker.ppid() for worker in workers()})


def test_what_finds_no_room_in_time_is_unschedulable(group: WorkerGroup, launch: Launch) -> None:
    holder = _Holder.remote()
    ray.get(holder.hold.remote(), timeout=60)
    listener = Listener()
    jobs = [job("a", group, world_size=2), job("b", group, world_size=2)]
    launch({group.name: [session(group, *jobs)]}, replace(LIMITS, schedule_timeout_s=1), listener)
    ray.kill(holder)
    assert listener.story() == ["unschedulable a", "unschedulable b"]
    reason = listener.failure("a").reason
    assert "not placed within 1 s: asked local for 2 x 1 CPU" in reason
    assert "1 CPU, 0 GPU free" in reason


def test_what_no_group_can_hold_is_unschedulable_at_once(group: WorkerGroup, launch: Launch) -> None:
    listener = Listener()
    launch({group.name: [session(group, job("a", group, world_size=3))]}, LIMITS, listener)
    assert listener.story() == ["unschedulable a"]
    assert listener.failure("a").reason == "local has 2 devices on 1 node, 3 were asked for"


def test_ctrl_c_ends_all_workers_and_is_raised_again(group: WorkerGroup, launch: Launch) -> None:
    listener = Listener(act=_press_ctrl_c)
    queue = [session(group, job("a", group, world_size=2, steps=ENDLESS))]
    with pytest.raises(KeyboardInterrupt):
        launch({group.name: queue}, LIMITS, listener)
    # Ray has been told to end them; the processes need a moment.
    assert psutil.wait_procs(workers(), timeout=120)[1] == []
    assert listener.story() == ["start a"]


def test_ctrl_c_while_waiting_for_room_leaves_no_claim_behind(group: WorkerGroup, launch: Launch) -> None:
    holder = _Holder.remote()
    ray.get(holder.hold.remote(), timeout=60)
    queue = [session(group, job("a", group, world_size=2))]
    interrupt = threading.Timer(5, _press_ctrl_c)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        launch({group.name: queue}, LIMITS, Listener())
    ray.kill(holder)
    assert_all_capacity_returns(NUM_CPUS)


@ray.remote(num_cpus=1)
class _Holder:
    """Somebody else on the node."""

    def hold(self) -> None:
        return None


def _kill_a_worker() -> None:
    workers()[0].kill()


def _crash_a_worker() -> None:
    workers()[0].send_signal(signal.SIGSEGV)


def _stop_a_worker() -> None:
    workers()[0].suspend()


def _press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
