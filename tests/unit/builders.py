"""Small whole things to test with; each argument changes what the test is about."""

import json
from collections.abc import Sequence
from typing import Any

from checkpointing.stores.contract import Store
from cluster.inventory import Inventory, Node, Vendor, WorkerGroup
from jobs.execution.messages import Session
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.sweeps.grid import Cell, Run, expand
from jobs.sweeps.plan import Plan, plan_all
from jobs.sweeps.results import Results
from jobs.sweeps.rows.result_record import RunAttempt, record_of
from jobs.sweeps.work_queues import queues
from jobs.training.task.measurement import (
    Environment,
    Failure,
    Measurement,
    Operation,
    Profile,
    ProfileBasis,
    RankProfile,
    RankSummary,
)
from reporting.results.imported import file_of
from reporting.results.records import RunRecord
from reporting.results.rows import Row

GB = 10**9


def sweep(**changes: Any) -> SweepSpec:
    """A spec of one cell, two repeats; ``axes={"world_size": [1, 2]}`` and so on make it larger."""
    plain: dict[str, Any] = {"name": "trial", "models": ["llama-tiny"], "groups": ["local"], "repeats": 2}
    return SweepSpec.model_validate_json(json.dumps({**plain, **changes}))


def group(
    name: str = "local",
    devices: tuple[int, ...] = (2,),
    *,
    vendor: Vendor = "cpu",
    device: str | None = None,
    memory_bytes: int | None = None,
    simulated: bool = False,
) -> WorkerGroup:
    """One node for each number of devices."""
    nodes = tuple(
        Node(node_id=f"{name}-{index}", num_devices=count, num_cpus=count, memory_bytes=memory_bytes)
        for index, count in enumerate(devices)
    )
    return WorkerGroup(name=name, vendor=vendor, nodes=nodes, device=device, simulated=simulated)


def inventory(*groups: WorkerGroup) -> Inventory:
    return Inventory(groups=groups, source="the test's cluster")


def cells_of(spec: SweepSpec) -> list[Cell]:
    return expand(spec, ["local"])


def plans_of(spec: SweepSpec, *groups: WorkerGroup) -> dict[str, Plan]:
    plans = plan_all(cells_of(spec), inventory(*(groups or (group(),))), spec.limits)
    return {plan.cell.cell_id: plan for plan in plans}


def sessions_of(
    spec: SweepSpec, runs: Sequence[Run], plans: dict[str, Plan], groups: dict[str, WorkerGroup]
) -> dict[str, list[Session]]:
    """The sessions of ``runs``, all of which are wanted at once, by group."""
    names = dict.fromkeys(run.cell.group for run in runs)
    waves = {name: [[run for run in runs if run.cell.group == name]] for name in names}
    found = queues(spec, waves, plans, groups, lambda run: plans[run.cell.cell_id].recipe)
    return {name: [session for session in sessions if session] for name, sessions in found.items()}


def run_of(spec: SweepSpec, repeat: int = 1) -> Run:
    return Run(cell=cells_of(spec)[0], repeat=repeat, order=repeat)


def rank_summary(rank: int, **changes: Any) -> RankSummary:
    values: dict[str, Any] = {
        "rank": rank,
        "node": "node-0",
        "device": "cpu",
        "device_id": f"process-{rank}",
        "total_s": 1.0,
        "p50_s": 0.1,
        "p95_s": 0.11,
        "max_s": 0.12,
        "mean_loss": 6.25,
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "allocator_retries": None,
        "device_memory_bytes": None,
        "device_used_bytes": None,
        "host_peak_growth_bytes": 250_000_000 + rank,
    }
    return RankSummary(**{**values, **changes})


def environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "platform": "cpu",
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "packages": {"ray": "2.60.0", "deepspeed": "0.19.8", "numpy": "2.4.6"},
        "driver": None,
        "collectives": "gloo",
        "device": None,
        "variables": {"OMP_NUM_THREADS": "1"},
    }
    return Environment(**{**values, **changes})


def measurement(
    run_id: str, *, num_ranks: int = 1, step_s: float = 0.1, num_steps: int = 10, **changes: Any
) -> Measurement:
    """All steps take ``step_s``."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "warmup_steps": 12,
        "warmup_rule": "rolling_median_5_within_1pct_max_50",
        "window_s": step_s * num_steps,
        "step_times_s": (step_s,) * num_steps,
        "losses": tuple(6.5 - 0.1 * step for step in range(num_steps)),
        "reference_step": 5,
        "reference_loss": 6.25,
        "ranks": tuple(rank_summary(rank) for rank in range(num_ranks)),
        "h2d_bytes_per_step": None,
        "h2d_s_per_step": None,
        "setup_s": 0.5,
        "warmup_s": 1.25,
        "environment": environment(),
    }
    return Measurement(**{**values, **changes})


def profile(*, num_ranks: int = 1, basis: ProfileBasis = "cpu", **changes: Any) -> Profile:
    """Of two operations; each rank communicates 0.1 more than the one before."""
    values: dict[str, Any] = {
        "basis": basis,
        "num_steps": 3,
        "ranks": tuple(
            RankProfile(
                step_s=0.12,
                communication=0.3 + rank / 10,
                exposed_communication=0.2 + rank / 10,
                data_wait=0.01,
                idle=0.05 if basis == "device" else None,
            )
            for rank in range(num_ranks)
        ),
        "operations": (
            Operation(name="aten::mm", share=0.5, calls_per_step=87, seconds_per_step=0.06),
            Operation(name="gloo:all_reduce", share=0.3, calls_per_step=2, seconds_per_step=0.036),
        ),
        "trace": b"a trace",
    }
    return Profile(**{**values, **changes})


ATTEMPT = RunAttempt(
    number=1, started_at="2026-01-02T03:04:05.678+00:00", finished_at="2026-01-02T03:05:05.678+00:00"
)
CRASH = Failure(status="crash", reason="RuntimeError: boom", phase="window", ranks=(0, 1))


def record(spec: SweepSpec, run: Run, outcome: Measurement | Failure, *groups: WorkerGroup) -> RunRecord:
    return record_of(spec, run, plans_of(spec, *groups)[run.cell.cell_id], outcome, ATTEMPT)


def put_results(store: Store, *, strategies: Sequence[str] = ("ddp", "fsdp"), repeats: int = 2) -> None:
    """A finished sweep ``trial`` of one cell per strategy; the last cell crashed."""
    spec = sweep(axes={"strategy": list(strategies)}, repeats=repeats)
    for index, cell in enumerate(cells_of(spec)):
        for repeat in range(1, repeats + 1):
            run = Run(cell=cell, repeat=repeat, order=repeat)
            is_last = index == len(strategies) - 1
            outcome = CRASH if is_last else measurement(run.run_id, step_s=0.1 + 0.001 * repeat)
            store.put(f"sweeps/trial/runs/{run.name}/result.json", record(spec, run, outcome).to_json())


def put_fixed_results(store: Store) -> None:
    """Two groups, of which ``new`` is faster and ran out of memory in one cell; an import; a broken file."""
    spec = sweep(axes={"strategy": ["ddp", "zero2"], "world_size": [1, 2]}, groups=["old", "new"], repeats=5)
    groups = (group("old"), group("new"))
    for cell in expand(spec, ["old", "new"]):
        for repeat in range(1, spec.repeats + 1):
            run = Run(cell=cell, repeat=repeat, order=repeat)
            row = record(spec, run, _fixed_outcome(run), *groups).to_dict()
            if row["environment"]:
                row["environment"] |= {"commit": "0123456789ab", "source_digest": "ba9876543210"}
            store.put(f"sweeps/trial/runs/{run.name}/result.json", json.dumps(row).encode())
    Results(store, spec.name).describe(spec, [])
    imported = Row(source="old.csv", strategy="ddp", world_size=2, tokens_per_sec=8369.5, imported=True)
    store.put(*file_of([imported], "old"))
    store.put("sweeps/trial/runs/broken/result.json", b"{")


def _fixed_outcome(run: Run) -> Measurement | Failure:
    recipe = run.cell.recipe
    if (run.cell.group, recipe.strategy, recipe.world_size) == ("new", "zero2", 2):
        return Failure(status="oom", reason="RuntimeError: out of memory", phase="window", ranks=(0, 1))
    step_s = 0.1 * (0.9 if run.cell.group == "new" else 1.0) * (1 + 0.002 * run.repeat)
    times = tuple(step_s * (1 + 0.001 * (index % 7)) for index in range(10))
    return measurement(run.run_id, num_ranks=recipe.world_size, step_times_s=times, window_s=sum(times))
