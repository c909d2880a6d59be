"""Turns runs into one queue of sessions per group, in the order of the sweep.

With isolation ``group``, adjacent runs of one group, world size and repeat share a session. With ``run``,
each run has its own session. Two repeats of one cell never share a session. Sessions are made when they are
asked for, since what they do may depend on the results of those before them. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cluster.environment import is_on_cpus, worker_environment
from cluster.inventory import WorkerGroup
from jobs.execution.messages import Session, Upcoming
from jobs.sweeps.grid import Run
from jobs.sweeps.plan import Plan
from jobs.training.task.job import Job, Recipe, Strategy
from jobs.training.task.search.largest_batch import BatchSearch

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec

# By group, what to measure next, until nothing is missing.
Waves = Mapping[str, Iterable[Sequence[Run] | None]]
# What to do in a run: measure a recipe, or go on with a search. None: the run is not started.
Start = Recipe | BatchSearch | None


def queues(
    spec: "SweepSpec",
    waves: Waves,
    plans: Mapping[str, Plan],
    groups: Mapping[str, WorkerGroup],
    start_of: Callable[[Run], Start],
) -> dict[str, Iterator[Session | None]]:
    """Returns a queue for each group in ``waves``. A wave is asked for when those before it are done. None
    means that the group has to wait.
    """
    return {name: _sessions(spec, waves[name], plans, groups[name], start_of) for name in waves}


def upcoming(runs: Iterable[Run], plans: Mapping[str, Plan]) -> Upcoming | None:
    """What the workers of ``runs`` on CPUs will load, with the environment of the first of them; None if
    there is no such run.
    """
    found: dict[tuple[tuple[str, str], ...], dict[Strategy, None]] = {}
    for run in runs:
        plan = plans[run.cell.cell_id]
        if plan.group is not None and is_on_cpus(plan.group) and not plan.refused:
            told = _environment(run, plan.group)
            found.setdefault(tuple(told.items()), {})[run.cell.recipe.strategy] = None
    for environment, strategies in found.items():
        return Upcoming(environment=dict(environment), strategies=tuple(strategies))
    return None


def in_step(rounds: Mapping[str, Sequence[Sequence[Run]]]) -> Waves:
    """Waves in which no group begins a round before all groups have done the one before: a group that is
    ahead gets None until then.
    """
    begun = dict.fromkeys(rounds, 0)

    def waves(group: str) -> Iterator[Sequence[Run] | None]:
        for number, runs in enumerate(rounds[group]):
            begun[group] = number
            while min(begun.values()) < number:
                yield None
            yield runs
        begun[group] = max(map(len, rounds.values()))

    return {group: waves(group) for group in rounds}


def _sessions(
    spec: "SweepSpec",
    waves: Iterable[Sequence[Run] | None],
    plans: Mapping[str, Plan],
    group: WorkerGroup,
    start_of: Callable[[Run], Start],
) -> Iterator[Session | None]:
    for wave in waves:
        if wave is None:
            yield None
            continue
        for _, together in groupby(wave, key=lambda run: _share(spec, run)):
            members = list(together)
            environment = _environment(members[0], group)
            starts = ((run, start_of(run)) for run in members)
            jobs = tuple(_job(run, plans[run.cell.cell_id], group, start) for run, start in starts if start)
            if jobs:
                yield Session(group=group, jobs=jobs, environment=environment)


def _environment(run: Run, group: WorkerGroup) -> dict[str, str]:
    cell = run.cell
    return worker_environment(group, dict(cell.environment), deterministic=cell.recipe.deterministic)


def _share(spec: "SweepSpec", run: Run) -> tuple[int, ...]:
    """A key that is equal for adjacent runs that may share worker processes."""
    if spec.isolation == "run":
        return (run.order,)
    return (run.repeat, run.cell.recipe.world_size)


def _job(run: Run, plan: Plan, group: WorkerGroup, start: Recipe | BatchSearch) -> Job:
    return Job(
        run_id=run.run_id,
        recipe=start if isinstance(start, Recipe) else plan.recipe,
        window=run.cell.window,
        vendor=group.vendor,
        simulated=group.simulated,
        may_mix_devices=group.may_mix_devices,
        memory_budget_bytes=plan.memory_budget_bytes,
        search=start if isinstance(start, BatchSearch) else None,
    )
