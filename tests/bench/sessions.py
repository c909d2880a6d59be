"""What a cell costs besides its warm-up and its window: our two isolations beside the plain way.

The plain way is one ``TorchTrainer.fit()`` per cell with Ray Train's defaults. All three run the same
cells on the same private Ray, one after another, and the order turns with each round.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from cluster.environment import worker_environment
from cluster.inventory import WorkerGroup
from cluster.live import live_inventory
from cluster.local_ray.private_ray import private_ray
from jobs.execution.messages import Event, Finished, Session, SessionLimits
from jobs.launch.ray_train.cells import launch
from jobs.training.task.job import Job, OptimizerConfig, Recipe, Strategy, Window
from jobs.training.task.measurement import Measurement
from jobs.training.task.presets import preset

ROUNDS = 3
BOUND = 1 / 3
# DeepSpeed first: what it would leave behind in the process would show in those that follow.
STRATEGIES: tuple[Strategy, ...] = ("zero3", "zero2", "fsdp", "ddp")
LIMITS = SessionLimits(schedule_timeout_s=120, cell_timeout_s=120)


def main() -> bool:
    with private_ray():
        group = live_inventory().groups[0]
        jobs = tuple(_job(strategy, group) for strategy in STRATEGIES)
        steps_s: dict[str, dict[str, list[float]]] = {"group": {}, "run": {}}
        ways: list[tuple[str, Callable[[], float]]] = [
            ("group", lambda: _sessions_s([jobs], group, steps_s["group"])),
            ("run", lambda: _sessions_s([(job,) for job in jobs], group, steps_s["run"])),
            ("plain", lambda: _plain_s(jobs)),
        ]
        taken: dict[str, list[float]] = {name: [] for name, _ in ways}
        for turn in range(ROUNDS):
            for name, measure_s in ways[turn % 3 :] + ways[: turn % 3]:
                taken[name].append(measure_s() / len(jobs))
    cost = {name: median(values) for name, values in taken.items()}
    for name, seconds in cost.items():
        share = f"{seconds / cost['plain']:.2f} of the plain way"
        print(f"isolation {name:5}  {seconds:.2f} s per cell besides warm-up and window: {share}")
    print(
        f"               (bound for group {BOUND:.2f}; {len(STRATEGIES)} cells of 2 ranks, {ROUNDS} rounds)"
    )
    for strategy in STRATEGIES:
        run_id = _run_id(strategy)
        ratio = median(steps_s["group"][run_id]) / median(steps_s["run"][run_id])
        print(f"later cells    {strategy}: step time {ratio:.2f}x of a fresh process's")
    return cost["group"] / cost["plain"] < BOUND


def _job(strategy: Strategy, group: WorkerGroup) -> Job:
    recipe = Recipe(
        model=preset("llama-tiny"),
        strategy=strategy,
        world_size=2,
        seq_len=64,
        micro_batch=2,
        grad_accum=1,
        precision="fp32",
        seed=0,
        optimizer=OptimizerConfig(),
    )
    window = Window(steps=20, warmup=5)
    return Job(run_id=_run_id(strategy), recipe=recipe, window=window, vendor=group.vendor)


def _run_id(strategy: Strategy) -> str:
    return f"bench-{strategy}"


def _sessions_s(
    sessions: list[tuple[Job, ...]], group: WorkerGroup, steps_s: dict[str, list[float]]
) -> float:
    """Wall time of the sessions less what their runs spent in warm-up and window.

    Adds all step times to ``steps_s``, by run.
    """
    measured: list[Measurement] = []

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            if not isinstance(event.outcome, Measurement):
                raise RuntimeError(f"{event.run_id}: {event.outcome.status}: {event.outcome.reason}")
            measured.append(event.outcome)
            steps_s.setdefault(event.run_id, []).extend(event.outcome.step_times_s)

    environment = worker_environment(group, {})
    queue = [Session(group=group, jobs=jobs, environment=environment) for jobs in sessions]
    started = time.perf_counter()
    launch({group.name: queue}, LIMITS, listen)
    return time.perf_counter() - started - sum(run.warmup_s + run.window_s for run in measured)


def _plain_s(jobs: tuple[Job, ...]) -> float:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    spent_s = 0.0
    started = time.perf_counter()
    for job in jobs:
        with TemporaryDirectory(prefix="longhaul-bench-") as folder:
            result = Path(folder) / "productive_s"
            TorchTrainer(
                _plain_worker,
                train_loop_config={"job": job, "result": str(result)},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=folder),
            ).fit()
            spent_s += float(result.read_text())
    return time.perf_counter() - started - spent_s


def _plain_worker(config: dict[str, object]) -> None:
    """What one would write by hand: the same measuring, and the number into a file."""
    import ray.train
    import torch

    from jobs.training.benchmark.measure import measure
    from jobs.training.task.context import Context

    rank = ray.train.get_context().get_world_rank()
    context = Context(rank=rank, world_size=2, local_rank=rank, device=torch.device("cpu"))
    job = config["job"]
    assert isinstance(job, Job)
    measured = measure(job, context)
    if measured is not None:
        Path(str(config["result"])).write_text(str(measured.warmup_s + measured.window_s))
