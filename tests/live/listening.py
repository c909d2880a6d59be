"""What the tests of launching share: small jobs, a listener that may act, and the processes of this Ray."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import ray

from cluster.environment import worker_environment
from cluster.inventory import WorkerGroup
from jobs.execution.messages import Event, Finished, Heartbeat, Session, Started
from jobs.training.task.context import Phase
from jobs.training.task.job import Job, OptimizerConfig, Recipe, Window
from jobs.training.task.measurement import Failure, Measurement
from jobs.training.task.presets import preset

ENDLESS = 10**6


def job(run_id: str, group: WorkerGroup, *, world_size: int, steps: int = 2, warmup: int = 1) -> Job:
    recipe = Recipe(
        model=preset("llama-tiny"),
        strategy="ddp",
        world_size=world_size,
        seq_len=32,
        micro_batch=1,
        grad_accum=1,
        precision="fp32",
        seed=0,
        optimizer=OptimizerConfig(),
    )
    window = Window(steps=steps, warmup=warmup)
    return Job(run_id=run_id, recipe=recipe, window=window, vendor=group.vendor, simulated=group.simulated)


def session(group: WorkerGroup, *jobs: Job) -> Session:
    return Session(group=group, jobs=jobs, environment=worker_environment(group, {}))


@dataclass
class Listener:
    """Keeps what it hears. ``act`` is called once, when so many ranks have told of a step of that phase."""

    act: Callable[[], None] | None = None
    act_at_ranks: int = 1
    act_in: Phase = "window"
    events: list[Event] = field(default_factory=list)
    _stepping: set[int] = field(default_factory=set)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.act and isinstance(event, Heartbeat) and event.phase == self.act_in and event.step > 0:
            self._stepping.add(event.rank)
            if len(self._stepping) == self.act_at_ranks:
                act, self.act = self.act, None
                act()

    def story(self) -> list[str]:
        """Starts and ends in order, as in ``["start a", "ok a"]``."""
        told = []
        for event in self.events:
            if isinstance(event, Started):
                told.append(f"start {event.run_id}")
            elif isinstance(event, Finished):
                is_ok = isinstance(event.outcome, Measurement)
                told.append(f"{'ok' if is_ok else event.outcome.status} {event.run_id}")
        return told

    def measurement(self, run_id: str) -> Measurement:
        outcome = self._outcome(run_id)
        assert isinstance(outcome, Measurement), outcome
        return outcome

    def failure(self, run_id: str) -> Failure:
        outcome = self._outcome(run_id)
        assert isinstance(outcome, Failure), f"{run_id} is ok"
        return outcome

    def _outcome(self, run_id: str) -> Measurement | Failure:
        (outcome,) = [e.outcome for e in self.events if isinstance(e, Finished) and e.run_id == run_id]
        return outcome


def workers() -> list[psutil.Process]:
    """The Train workers of the Ray that this process started, and of no other."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "RayTrainWorker" in "".join(_command(child))]


def assert_all_capacity_returns(num_cpus: float, timeout_s: float = 120) -> None:
    """No placement is left, and no worker: not even a stopped one, which Ray needs some seconds to end."""
    deadline = time.monotonic() + timeout_s
    while (left := (_free_cpus(), workers())) != (num_cpus, []) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == (num_cpus, [])


def _free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
