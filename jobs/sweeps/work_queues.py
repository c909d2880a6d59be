"""Turns missing runs into one queue of sessions per group, in the order of the sweep. Pure.

With isolation ``group``, adjacent runs of one group, world size and repeat share a session. With ``run``,
each run has its own session. Two repeats of one cell never share a session.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cluster.environment import worker_environment
from cluster.inventory import WorkerGroup
from jobs.execution.messages import Session
from jobs.sweeps.grid import Run
from jobs.sweeps.plan import Plan
from jobs.training.task.job import Job

if TYPE_CHECKING:  # as in jobs.sweeps.grid
    from jobs.spec_schema.sweep_spec import SweepSpec


def queues(
    spec: "SweepSpec", runs: Sequence[Run], plans: dict[str, Plan], groups: dict[str, WorkerGroup]
) -> dict[str, list[Session]]:
    """Returns a queue for each group that has runs. ``groups`` must contain the group of every run."""
    found: dict[str, list[Session]] = {name: [] for name in groups}
    for (group, _), together in groupby(runs, key=lambda run: (run.cell.group, _share(spec, run))):
        members = list(together)
        environment = worker_environment(groups[group], dict(members[0].cell.environment))
        jobs = tuple(_job(run, plans[run.cell.cell_id], groups[group]) for run in members)
        found[group].append(Session(group=groups[group], jobs=jobs, environment=environment))
    return {name: sessions for name, sessions in found.items() if sessions}


def _share(spec: "SweepSpec", run: Run) -> tuple[int, ...]:
    """A key that is equal for adjacent runs that may share worker processes."""
    if spec.isolation == "run":
        return (run.order,)
    return (run.repeat, run.cell.recipe.world_size)


def _job(run: Run, plan: Plan, group: WorkerGroup) -> Job:
    return Job(
        run_id=run.run_id,
        recipe=run.cell.recipe,
        window=run.cell.window,
        vendor=group.vendor,
        simulated=group.simulated,
        may_mix_devices=group.may_mix_devices,
        memory_budget_bytes=plan.memory_budget_bytes,
    )
